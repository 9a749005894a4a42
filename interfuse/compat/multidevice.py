"""nvFuser's `multidevice` names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interfuse.compat.enums import CommunicatorBackend
from interfuse.frontend.domain import ParallelType, axis_of
from interfuse.multidevice import Communicator, DeviceMesh, shard_tensor
from interfuse.shard.placement import Placement


@dataclass(frozen=True, slots=True)
class Sharding:
    """Where an output lies."""

    mesh: DeviceMesh
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
