"""The module that `import nvfuser_direct` gives after `install_as`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interfuse.compat import idm, multidevice, nvf_cutlass, ops, pytorch_utils, schedule
from interfuse.compat import version as nvfuser_direct_version
from interfuse.compat.caches import LRUCache, LruFusionCache
from interfuse.compat.current import FusionGuard, current
from interfuse.compat.definition import FusionDefinition
from interfuse.compat.enums import (
    CacheOp,
    CommunicatorBackend,
    IdMappingMode,
    LoadStoreOpType,
    MatmulBufferingLoopLevel,
    MatmulCircularBufferingStrategy,
    MatmulTileRasterizationOrder,
    MatmulTilingStrategy,
    MemoryType,
    MmaMacroArch,
    SchedulerType,
)
from interfuse.compat.executors import CompileParams, FusionExecutorCache, KernelExecutor, LaunchParams
from interfuse.compat.fusion import Fusion
from interfuse.compat.handles import BroadcastOp, Expr, Merge, ReshapeOp, Split, SqueezeOp, TensorDomain, TensorView
from interfuse.compat.params import (
    CircularBufferOptions,
    ClusterDims,
    GemmTile,
    HeuristicParams,
    MatmulParams,
    MatMulTileOptions,
    MmaMacro,
    MmaMacroEncode,
    PointwiseParams,
    ReductionParams,
    SupportedVectorization,
)
from interfuse.compat.profile import FusionProfile, KernelProfile, PythonProfiler, get_fusion_profile, reset_profiler
from interfuse.compat.translate import translate_fusion
from interfuse.compat.validate import get_val_tolerances, validate_with_auto_inferred_outputs
from interfuse.compat.version import version
from interfuse.frontend.descriptors import compute_tensor_descriptor
from interfuse.frontend.domain import ParallelType
from interfuse.frontend.handles import IterDomain, Val
from interfuse.ir.dtypes import DataType

__version__ = nvfuser_direct_version.__version__
Statement = object


def define_tensor(*args: Any, **kwargs: Any) -> Any:
    """An input of the current fusion."""
    return current().define_tensor(*args, **kwargs)


def define_scalar(*args: Any, **kwargs: Any) -> Val:
    """A constant, or a scalar input of the current fusion."""
    return current().define_scalar(*args, **kwargs)


def execute_with_dtensors(fd: FusionDefinition, in_dtensors: Sequence[Any]) -> Any:
    """Runs on DTensors and gives DTensors."""
    return fd.execute(list(in_dtensors))


__all__ = [
    "BroadcastOp",
    "CacheOp",
    "CircularBufferOptions",
    "ClusterDims",
    "CommunicatorBackend",
    "CompileParams",
    "DataType",
    "Expr",
    "Fusion",
    "FusionDefinition",
    "FusionExecutorCache",
    "FusionGuard",
    "FusionProfile",
    "GemmTile",
    "HeuristicParams",
    "IdMappingMode",
    "IterDomain",
    "KernelExecutor",
    "KernelProfile",
    "LRUCache",
    "LaunchParams",
    "LoadStoreOpType",
    "LruFusionCache",
    "MatMulTileOptions",
    "MatmulBufferingLoopLevel",
    "MatmulCircularBufferingStrategy",
    "MatmulParams",
    "MatmulTileRasterizationOrder",
    "MatmulTilingStrategy",
    "MemoryType",
    "Merge",
    "MmaMacro",
    "MmaMacroArch",
    "MmaMacroEncode",
    "ParallelType",
    "PointwiseParams",
    "PythonProfiler",
    "ReductionParams",
    "ReshapeOp",
    "SchedulerType",
    "Split",
    "SqueezeOp",
    "Statement",
    "SupportedVectorization",
    "TensorDomain",
    "TensorView",
    "Val",
    "__version__",
    "compute_tensor_descriptor",
    "define_scalar",
    "define_tensor",
    "execute_with_dtensors",
    "get_fusion_profile",
    "get_val_tolerances",
    "idm",
    "multidevice",
    "nvf_cutlass",
    "nvfuser_direct_version",
    "ops",
    "pytorch_utils",
    "reset_profiler",
    "schedule",
    "translate_fusion",
    "validate_with_auto_inferred_outputs",
    "version",
]
