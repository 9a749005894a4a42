"""Scans, which ATen computes whole. One `AtenOp` each, and one builder for all."""

from __future__ import annotations

import torch

from interfuse.ir.nodes import Aten, AtenOp, Scalar, Tensor
from interfuse.ops.build import Builder, cast, pointwise, wrap_dim
from interfuse.ops.elementwise import ROWS
from interfuse.ops.index import all_but
from interfuse.ops.promote import Rule


def _scan(name: str, torch_function: object, *, linear: bool = False) -> AtenOp:
    return AtenOp(name, torch_function, all_but, linear_in=(frozenset({0}),) if linear else ())  # type: ignore[arg-type]


SCANS = {
    row.name: row
    for row in (
        _scan("cumsum", lambda a, dim: torch.cumsum(a, dim, dtype=a.dtype), linear=True),
        _scan("cumprod", lambda a, dim: torch.cumprod(a, dim, dtype=a.dtype)),
        _scan("cummax", lambda a, dim: torch.cummax(a, dim).values),
        _scan("cummin", lambda a, dim: torch.cummin(a, dim).values),
    )
}
_JOIN = {"cumsum": "add", "cumprod": "mul", "cummax": "maximum", "cummin": "minimum"}


def scan(b: Builder, op: AtenOp, arg: Tensor, dim: int, init: Scalar | None = None) -> Tensor:
    """The running reduction along `dim`; `init` comes before the first element."""
    result = b.emit(Aten(b.new(arg.shape, arg.dtype), op, (arg,), (("dim", wrap_dim(dim, arg.ndim, op.name)),)))
    if init is None:
        return result
    joined = cast(b, pointwise(b, ROWS[_JOIN[op.name]], Rule.ARITHMETIC, (result, cast(b, init, arg.dtype))), arg.dtype)
    assert isinstance(joined, Tensor)
    return joined
