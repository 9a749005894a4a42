"""Ops that ATen computes whole: scans, and everything that sorts or looks up. One `AtenOp` and one builder each."""

from __future__ import annotations

import torch

from interfuse.errors import ShapeError
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Aten, AtenOp, Tensor, operands
from interfuse.ir.sizes import Size
from interfuse.ops.build import Builder, wrap_dim

Letters = tuple[int | None, ...]


def all_but(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Every dim follows, except the one named by the attribute `dim`, which must be whole."""
    gone = dict(node.attrs)["dim"]
    row = tuple(None if d == gone else d for d in range(node.out.ndim))
    return (row,) * len(operands(node)), row


def _scan(name: str, torch_function: object) -> AtenOp:
    return AtenOp(name, torch_function, all_but)  # type: ignore[arg-type]


SCANS = {
    row.name: row
    for row in (
        _scan("cumsum", lambda a, dim: torch.cumsum(a, dim, dtype=a.dtype)),
        _scan("cumprod", lambda a, dim: torch.cumprod(a, dim, dtype=a.dtype)),
        _scan("cummax", lambda a, dim: torch.cummax(a, dim).values),
        _scan("cummin", lambda a, dim: torch.cummin(a, dim).values),
    )
}


def scan(b: Builder, op: AtenOp, arg: Tensor, dim: int) -> Tensor:
    return b.emit(Aten(b.new(arg.shape, arg.dtype), op, (arg,), (("dim", wrap_dim(dim, arg.ndim, op.name)),)))


def _topk(arg: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.topk(arg, k, dim, largest, sorted)
    return values, indices


TOPK = AtenOp("topk", _topk, all_but, results=2)


def topk(b: Builder, arg: Tensor, k: Size, dim: int = -1, largest: bool = True, sorted: bool = False) -> tuple[Tensor, Tensor]:
    axis = wrap_dim(dim, arg.ndim, "topk")
    size = arg.shape[axis]
    if isinstance(k, int) and (k < 0 or (isinstance(size, int) and k > size)):
        raise ShapeError(f"topk: k={k} of a dim of size {size}")
    shape = tuple(k if d == axis else s for d, s in enumerate(arg.shape))
    attrs = (("k", k), ("dim", axis), ("largest", largest), ("sorted", sorted))
    values = b.emit(Aten(b.new(shape, arg.dtype), TOPK, (arg,), attrs, 0))
    return values, b.emit(Aten(b.new(shape, DataType.Int), TOPK, (arg,), attrs, 1))
