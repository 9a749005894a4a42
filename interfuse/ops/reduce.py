"""Reductions: one `ReduceOp` row each. All are associative and commutative, so a reduction over a split dim is a partial value."""

from __future__ import annotations

import torch

from interfuse.ir.dtypes import DataType, from_torch
from interfuse.ir.nodes import ReduceOp


def lowest(dtype: DataType) -> bool | int | float:
    """The identity of max."""
    if dtype is DataType.Bool:
        return False
    return float("-inf") if dtype.is_float else torch.iinfo(dtype.torch).min


def highest(dtype: DataType) -> bool | int | float:
    """The identity of min."""
    if dtype is DataType.Bool:
        return True
    return float("inf") if dtype.is_float else torch.iinfo(dtype.torch).max


def _prod(arg: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        arg = torch.prod(arg, dim)
    return arg


def _extreme(name: str) -> object:
    reduce, identity = (torch.amax, lowest) if name == "max" else (torch.amin, highest)

    def run(arg: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        if all(arg.shape[d] for d in dims):
            return reduce(arg, dims)
        kept = [n for d, n in enumerate(arg.shape) if d not in dims]
        dtype = from_torch(arg.dtype)
        assert dtype is not None
        return torch.full(kept, identity(dtype), dtype=arg.dtype, device=arg.device)

    return run


ROWS: dict[str, ReduceOp] = {
    row.name: row
    for row in (
        ReduceOp("sum", lambda a, dims: torch.sum(a, dims), lambda d: 0, "{0} + {1}", "+", "tl.sum"),
        ReduceOp("prod", _prod, lambda d: 1, "{0} * {1}", "*", "tl.prod"),
        ReduceOp("max", _extreme("max"), lowest, "if_max({0}, {1})", "max ", "tl.max"),  # type: ignore[arg-type]
        ReduceOp("min", _extreme("min"), highest, "if_min({0}, {1})", "min ", "tl.min"),  # type: ignore[arg-type]
    )
}
SUM = ROWS["sum"]
