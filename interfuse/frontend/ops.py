"""`fd.ops`: every row of the op table as a method that takes and gives handles."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from interfuse.errors import ArgumentTypeError, DefinitionError
from interfuse.frontend.handles import TensorView, Val
from interfuse.ir.dtypes import DataType, of_python
from interfuse.ir.nodes import Const
from interfuse.ops.build import as_size
from interfuse.ops.table import TABLE, OpRow

if TYPE_CHECKING:
    from interfuse.frontend.definition import FusionDefinition

_SIZE_LISTS = {
    "reshape": {"new_shape"},
    "expand": {"shape"},
    "broadcast_in_dim": {"shape"},
    "slice": {"start_indices", "end_indices", "strides"},
    "pad": {"pad_widths"},
    "full": {"shape", "shape_"},
    "uniform": {"shape"},
    "normal": {"shape"},
}
_PLAIN = {
    "dims",
    "dim",
    "keepdim",
    "dtype",
    "correction",
    "strides",
    "manual_normalization",
    "manual_padding",
    "broadcast_dims",
    "is_broadcast_dim",
    "squeeze_expanded",
    "largest",
    "sorted",
    "stride_order",
    "descending",
    "stable",
    "output_block_scale_size",
    "output_gamma",
}


class Ops:
    """The ops of one definition. `fd.ops.add(a, b)` appends to the program and gives its result."""

    def __init__(self, fd: FusionDefinition) -> None:
        self._fd = fd

    def __getattr__(self, name: str) -> Callable[..., Any]:
        row = TABLE.get(name)
        if row is None:
            near = difflib.get_close_matches(name, TABLE, 1)
            raise AttributeError(f"fd.ops has no {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._fd._call(row, args, kwargs)

        call.__name__, call.__doc__ = name, f"{row.signature}: {row.dims}; types: {row.dtype_rule}."
        setattr(self, name, call)
        return call

    def __dir__(self) -> list[str]:
        return sorted(TABLE)


def parameters(row: OpRow) -> list[str]:
    """Names of the row's parameters after the builder; `*args` of elementwise ops are unnamed."""
    code = row.build.__code__
    return list(code.co_varnames[1 : code.co_argcount])


def lower(row: OpRow, args: tuple[Any, ...], kwargs: dict[str, Any], fd: FusionDefinition) -> tuple[list[Any], dict[str, Any]]:
    """Handles and numbers as the row's `build` takes them."""
    names = parameters(row)
    positional = [_lower_one(row, names[i] if i < len(names) else "", a, fd) for i, a in enumerate(args)]
    renamed = {"shape_" if row.name == "full" and k == "shape" else k: v for k, v in kwargs.items()}
    return positional, {k: _lower_one(row, k, v, fd) for k, v in renamed.items()}


def _lower_one(row: OpRow, name: str, value: Any, fd: FusionDefinition) -> Any:
    if value is not None and name in _SIZE_LISTS.get(row.name, ()):
        return [_size(v, row.name, fd) for v in value]
    if name in ("length", "k"):
        return _size(value, row.name, fd)
    if name in _PLAIN or value is None or isinstance(value, DataType):
        return value
    if isinstance(value, TensorView):
        if value._fd is not fd:
            raise DefinitionError(f"{row.name}: {value.name} belongs to another definition")
        return value.tensor
    if isinstance(value, Val):
        return value.scalar
    if isinstance(value, (bool, int, float, complex)):
        return Const(value, of_python(value))
    if isinstance(value, (list, tuple)) and all(isinstance(v, TensorView) for v in value):
        return [v.tensor for v in value]
    raise ArgumentTypeError(f"{row.name}: {value!r} is neither a tensor, nor a scalar of the program, nor a number")


def _size(value: Any, what: str, fd: FusionDefinition) -> Any:
    return as_size(fd, value.scalar if isinstance(value, Val) else value, what)
