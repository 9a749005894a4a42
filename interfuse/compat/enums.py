"""nvFuser's enumerations. A member is always true, and each class lists its members as `__entries`, as pybind's enumerations do."""

from __future__ import annotations

import enum

from interfuse.frontend.domain import ParallelType
from interfuse.ir.dtypes import DataType


def _enumeration(name: str, doc: str, members: str) -> type[enum.Enum]:
    made = enum.Enum(name, {m: i for i, m in enumerate(members.split())})  # type: ignore[misc]
    made.__doc__, made.__module__ = doc, __name__
    return made


MemoryType = _enumeration("MemoryType", "Where a tensor of a kernel is held. Recorded.", "tensor local shared global symmetric")
CacheOp = _enumeration("CacheOp", "How a load uses the caches. Recorded.", "unspecified all_levels streaming global")
LoadStoreOpType = _enumeration("LoadStoreOpType", "How a cached copy is made. Recorded.", "set load_matrix cp_async tma")
CommunicatorBackend = _enumeration("CommunicatorBackend", "Who carries collectives.", "nccl ucc cuda")
SchedulerType = _enumeration(
    "SchedulerType",
    "How a segment is run.",
    "none no_op pointwise matmul reduction inner_persistent inner_outer_persistent outer_persistent transpose expr_eval resize",
)
IdMappingMode = _enumeration("IdMappingMode", "When two loops count as one.", "exact almost_exact broadcast permissive loop")
MatmulTilingStrategy = _enumeration("MatmulTilingStrategy", "Recorded.", "one_tile_per_cta distribute_tiles_across_sms distribute_stages_across_sms")
MatmulBufferingLoopLevel = _enumeration("MatmulBufferingLoopLevel", "Recorded.", "cta_tiles warp_tiles")
MatmulCircularBufferingStrategy = _enumeration("MatmulCircularBufferingStrategy", "Recorded.", "pipelined warp_specialized")
MatmulTileRasterizationOrder = _enumeration("MatmulTileRasterizationOrder", "Recorded.", "column_major row_major")
MmaMacroArch = _enumeration("MmaMacroArch", "Recorded.", "no_mma volta turing ampere hopper blackwell_1cta blackwell_2cta")


def _member_text(member: enum.Enum) -> str:
    return f"{type(member).__name__}.{member.name}"


for _class in (DataType, ParallelType, MemoryType, CacheOp, LoadStoreOpType, CommunicatorBackend, SchedulerType, IdMappingMode):
    setattr(_class, "__entries", {m.name: (m, None) for m in _class})
    if _class not in (DataType, ParallelType):
        _class.__str__ = _member_text  # type: ignore[assignment,method-assign]
