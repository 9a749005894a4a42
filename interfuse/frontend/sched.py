"""`fd.sched`: the schedule language as functions of tensors, as nvFuser's class style writes it."""

from __future__ import annotations

from collections.abc import Mapping

from interfuse.frontend.domain import ParallelType
from interfuse.frontend.handles import TensorView
from interfuse.shard.mesh import Mesh


class Sched:
    """Each function does what the method of the same name on the tensor does."""

    def _set_device_mesh(self, tensor: TensorView, mesh: Mesh) -> None:
        tensor.set_device_mesh(mesh)

    def split(self, arg: TensorView, dim: int, factor: int, inner_split: bool = True) -> None:
        arg.split(dim, factor, inner_split)

    def merge(self, arg: TensorView, dim: int) -> None:
        """Merges loop `dim` with the next one."""
        arg.merge(dim, dim + 1)

    def reorder(self, arg: TensorView, old2new: Mapping[int, int]) -> None:
        arg.reorder(old2new)

    def parallelize(self, tensor: TensorView, axis: int, parallel_type: ParallelType | str) -> None:
        tensor.axis(axis).parallelize(parallel_type)

    def set_allocation_as_loop(self, arg: TensorView) -> None:
        """The local tensor is dense in its loop order."""
        arg.set_allocation_domain(arg.get_loop_domain(), True)
