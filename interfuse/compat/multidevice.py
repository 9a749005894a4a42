"""nvFuser's `multidevice` names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interfuse.compat.enums import CommunicatorBackend
from interfuse.errors import MeshError
from interfuse.frontend.domain import ParallelType, axis_of
from interfuse.multidevice import Communicator, shard_tensor
from interfuse.shard.mesh import Mesh
from interfuse.shard.placement import Placement


class DeviceMesh(Mesh):
    """A mesh that cuts tensors as nvFuser's does."""

    __slots__ = ()

    def shard_tensor(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """This rank's even part of a *global* tensor along dim `axis`. Raises MeshError for a mesh of several dims, or for parts of unequal size."""
        if self.ndim != 1 or tensor.shape[axis] % self.size:
            raise MeshError(f"{self!r}.shard_tensor: dim {axis} of shape {tuple(tensor.shape)} is not cut into {self.size} equal parts by one dim")
        here = self.coordinates(Communicator.instance().rank())
        return tensor.chunk(self.size, axis)[0 if here is None else here[self.names[0]]].contiguous()


@dataclass(frozen=True, slots=True)
class Sharding:
    """Where an output lies."""

    mesh: Mesh
    placement: Placement

    def axis_sharded_on(self, parallel_type: ParallelType) -> int:
        """The dim that is split over a mesh axis, or -1."""
        axis = axis_of(parallel_type, self.mesh)
        return next((d for d, splits in enumerate(self.placement.dims) if any(s.axis == axis for s in splits)), -1)


@dataclass
class MultiDeviceExecutorParams:
    """Recorded; streams and backends are the plan's business."""

    use_allocation_cache: bool = False
    number_of_streams: int = 4
    backend_type: Any = CommunicatorBackend.nccl  # type: ignore[attr-defined]
    offset_stream_indexing_by_rank: bool = True
    inter_stream_synchronization: bool = False


class MultiDeviceExecutor:
    """Runs a fusion on all ranks of its mesh."""

    def __init__(self, fusion: Any, params: MultiDeviceExecutorParams | None = None) -> None:
        self._fusion, self.params = fusion, params or MultiDeviceExecutorParams()

    def run(self, args: Sequence[Any]) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = self._fusion.execute(list(args))
        return outputs

    def __str__(self) -> str:
        return str(self._fusion.print_math())


__all__ = ["Communicator", "DeviceMesh", "MultiDeviceExecutor", "MultiDeviceExecutorParams", "Sharding", "shard_tensor"]
