"""Meshes, this process's place in the world, and shards."""

from __future__ import annotations

from interfuse.frontend.shards import shard_tensor
from interfuse.run.communicator import Communicator
from interfuse.shard.mesh import Mesh as DeviceMesh

__all__ = ["Communicator", "DeviceMesh", "shard_tensor"]
