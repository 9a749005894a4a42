"""Parameters of nvFuser's heuristics. They are kept and compared; no result depends on them."""

from __future__ import annotations

from typing import Any

from interfuse.compat.executors import CompileParams, LaunchParams


class HeuristicParams:
    """Named parameters of one scheduler; any attribute may be set."""

    def __init__(self, scheduler_type: Any = None, **values: Any) -> None:
        self.lparams, self.cparams, self._scheduler_type = LaunchParams(), CompileParams(), scheduler_type
        self.__dict__.update(values)

    @property
    def scheduler_type(self) -> Any:
        return self._scheduler_type

    def hash(self) -> int:
        return hash(repr(sorted(self.__dict__.items(), key=lambda item: item[0])))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        shown = {k: v for k, v in self.__dict__.items() if not k.startswith("_") and k not in ("lparams", "cparams")}
        return f"\n===== {type(self).__name__} =====\n" + "".join(f"{k}: {v}\n" for k, v in shown.items())


class PointwiseParams(HeuristicParams):
    """Of a pointwise kernel."""

    def __init__(self, scheduler_type: Any = None) -> None:
        super().__init__(scheduler_type, break_point=0, split_block=False, split_grid_y_dim=False, flip_grid_binding=False)
        self.vectorization_factor = self.unroll_factor_inner = self.unroll_factor_outer = 1


class ReductionParams(HeuristicParams):
    """Of a reduction kernel."""

    def __init__(self, scheduler_type: Any = None) -> None:
        super().__init__(scheduler_type, fastest_dim=False, persistent_kernel=False, schedule_3d=False, flip_grid=False)


class MatmulParams(HeuristicParams):
    """Of a matmul kernel."""


class _Record:
    """A bag of named values that may be given in order."""

    _fields: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(dict.fromkeys(self._fields, 0) | dict(zip(self._fields, args, strict=False)) | kwargs)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.__dict__.items())})"


class GemmTile(_Record):
    """Extents of one tile of a product."""

    _fields = ("m", "n", "k")


class ClusterDims(_Record):
    """Extents of a cluster."""

    _fields = ("x", "y", "z")


class MatMulTileOptions(_Record):
    """Tiles of a block and of a warp."""

    _fields = ("cta_tile", "warp_tile")


class CircularBufferOptions(_Record):
    """Stages of the operands' buffers."""

    _fields = ("circular_buffer_smem_write", "circular_buffer_smem_read", "smem_circular_buffer_stage", "smem_circular_buffer_prefetch_gap")


class SupportedVectorization(_Record):
    """Widths of loads and stores."""

    _fields = ("a", "b", "epilogue")


class MmaMacroEncode(_Record):
    """A tensor-core instruction: architecture and tile."""

    _fields = ("arch", "m", "n", "k")


class MmaMacro(_Record):
    """A tensor-core instruction by number."""

    _fields = ("value",)
