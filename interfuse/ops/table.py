"""The op table: one row per op of `fd.ops`.

A row says how an op is called, its dtype rule, which dims follow which, its laws for partial values, what computes it, and how it is written
as nodes. `docs/ir.md` is printed from it (`python -m interfuse.ops.table`). Adding an op is one row here and one test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from interfuse.errors import DtypeError, ShapeError
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Broadcast, Const, Operand, Pointwise, Reduce, ReduceOp, Scalar, SizeScalar, Tensor
from interfuse.ir.sizes import Size
from interfuse.ops import elementwise, library, matmul, promote, reduce, shape
from interfuse.ops.build import Builder, cast, pointwise, wrap_dim
from interfuse.ops.promote import Rule


@dataclass(frozen=True, slots=True)
class OpRow:
    """One op. `build(builder, *args, **kwargs)` writes its nodes and gives its result, a tuple for several, or a scalar."""

    name: str
    family: str
    signature: str
    dtype_rule: str
    dims: str
    laws: str
    runs_as: str
    build: Callable[..., Any]


# ---- elementwise ----------------------------------------------------------------------------------------------------------------------------


def _elementwise(name: str, rule: Rule, *, fixed: int = 0) -> OpRow:
    op = elementwise.ROWS[name]

    def build(b: Builder, *args: Operand) -> Operand:
        if fixed and args[0].dtype is not DataType.Bool:
            raise DtypeError(f"{name}: the condition is {args[0].dtype.short}, not bool")
        return pointwise(b, op, rule, args, fixed=fixed)

    names = {1: "x", 2: "a, b", 3: "condition, a, b"}[op.arity]
    if op.linear_in:
        laws = "linear in " + " or ".join("{" + ", ".join("ab"[i] if op.arity > 1 else "x" for i in sorted(s)) + "}" for s in op.linear_in)
    else:
        laws = "partial operands are reduced first"
    return OpRow(name, "elementwise", f"{name}({names})", rule.value, "all dims follow; size 1 repeats", laws, f"kernel `{op.cpp}`", build)


_ARITHMETIC = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "neg")
_FLOATING = ("exp", "log", "tanh", "sin", "cos", "sqrt", "rsqrt", "reciprocal", "sigmoid")
_PLAIN = ("abs", "relu", "silu")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def _cast(b: Builder, arg: Operand, dtype: DataType) -> Operand:
    if isinstance(arg, Tensor) and arg.dtype is dtype:
        return b.emit(Pointwise(b.new(arg.shape, dtype), elementwise.SET, (arg,)))
    return cast(b, arg, dtype)


def _set(b: Builder, arg: Operand) -> Operand:
    return b.emit(Pointwise(b.new(arg.shape, arg.dtype), elementwise.SET, (arg,))) if isinstance(arg, Tensor) else arg


# ---- reductions -----------------------------------------------------------------------------------------------------------------------------


def _dims(arg: Tensor, dims: int | Sequence[int] | None, what: str) -> tuple[int, ...]:
    if dims is None:
        return tuple(range(arg.ndim))
    wrapped = tuple(wrap_dim(d, arg.ndim, what) for d in ([dims] if isinstance(dims, int) else dims))
    if not wrapped:
        raise ShapeError(f"{what}: no dims to reduce")
    if len(set(wrapped)) != len(wrapped):
        raise ShapeError(f"{what}: dims {list(wrapped)} name a dim twice")
    return tuple(sorted(wrapped))


def _reduced(b: Builder, op: ReduceOp, arg: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    kept = [d for d in range(arg.ndim) if d not in dims]
    out = arg
    if dims:
        out = b.emit(Reduce(b.new((arg.shape[d] for d in kept), arg.dtype), op, arg, dims))
    if not keepdim or not dims:
        return out
    shape_kept = [1 if d in dims else s for d, s in enumerate(arg.shape)]
    return b.emit(Broadcast(b.new(shape_kept, out.dtype), out, tuple(kept)))


def _reduction(name: str) -> OpRow:
    op = reduce.ROWS[name]
    sums = name in ("sum", "prod")

    def build(b: Builder, arg: Tensor, dims: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DataType | None = None) -> Tensor:
        if not sums and dtype is not None:
            raise DtypeError(f"{name}: keeps its operand's type; cast the result")
        wanted = dtype or (promote.sum_type(arg.dtype) if sums else arg.dtype)
        typed = cast(b, arg, wanted)
        assert isinstance(typed, Tensor)
        return _reduced(b, op, typed, _dims(arg, dims, name), keepdim)

    rule = "bool, ints → i64; else kept" if sums else "kept"
    laws = f"over a split dim: partial ({op.symbol.strip()}); a partial {name} passes through" if name == "sum" else f"over a split dim: partial ({op.symbol.strip()})"
    return OpRow(name, "reduction", f"{name}(x, dims=None, keepdim=False{', dtype=None' if sums else ''})", rule, "kept dims follow", laws, "kernel", build)


def _var_mean(b: Builder, arg: Tensor, dims: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Two passes: the mean, then the mean of squared differences; sizes are global, so uneven shards weigh right."""
    promote.require_float("var_mean", arg.dtype, low_precision=False)
    if correction < 0:
        raise ShapeError(f"var_mean: correction {correction} is negative")
    over = _dims(arg, dims, "var_mean")
    count = sizes.product(arg.shape[d] for d in over)
    rows = elementwise.ROWS
    mean_kept = pointwise(b, rows["div"], Rule.ARITHMETIC, (_reduced(b, reduce.SUM, arg, over, True), SizeScalar(count)))
    difference = pointwise(b, rows["sub"], Rule.ARITHMETIC, (arg, mean_kept))
    square = pointwise(b, rows["mul"], Rule.ARITHMETIC, (difference, difference))
    assert isinstance(square, Tensor) and isinstance(mean_kept, Tensor)
    divisor: Size = sizes.maximum(sizes.sub(count, correction), 0) if correction else count
    var = pointwise(b, rows["div"], Rule.ARITHMETIC, (_reduced(b, reduce.SUM, square, over, keepdim), SizeScalar(divisor)))
    assert isinstance(var, Tensor)
    mean = mean_kept if keepdim or not over else shape.squeeze(b, mean_kept, over)
    return var, mean


# ---- ops that ATen computes whole ---------------------------------------------------------------------------------------------------------


def _scan(name: str) -> OpRow:
    def build(b: Builder, arg: Tensor, dim: int) -> Tensor:
        return library.scan(b, library.SCANS[name], arg, dim)

    return OpRow(name, "scan", f"{name}(x, dim)", "kept", "other dims follow, dim is whole", "partial operands are reduced first", "library", build)


# ---- sizes ----------------------------------------------------------------------------------------------------------------------------------


def _size(b: Builder, arg: Tensor, dim: int) -> Scalar:
    return SizeScalar(arg.shape[wrap_dim(dim, arg.ndim, "size")])


def _shape(b: Builder, arg: Tensor) -> list[Scalar]:
    return [SizeScalar(s) for s in arg.shape]


def _full(b: Builder, shape_: Sequence[Size], fill_value: Scalar, dtype: DataType) -> Tensor:
    return shape.full(b, shape_, fill_value, dtype)


_VIEW, _NONE = "kernel index or view", "partial values pass through"

TABLE: dict[str, OpRow] = {
    row.name: row
    for row in (
        *(_elementwise(name, Rule.ARITHMETIC) for name in _ARITHMETIC),
        *(_elementwise(name, Rule.FLOATING) for name in _FLOATING),
        *(_elementwise(name, Rule.PLAIN) for name in _PLAIN),
        *(_elementwise(name, Rule.COMPARE) for name in _COMPARE),
        _elementwise("where", Rule.PLAIN, fixed=1),
        OpRow("cast", "elementwise", "cast(x, dtype)", "as asked", "all dims follow", "linear in {x}", "kernel", _cast),
        OpRow("set", "elementwise", "set(x)", "kept", "all dims follow", "linear in {x}", "kernel", _set),
        *(_reduction(name) for name in reduce.ROWS),
        OpRow("var_mean", "reduction", "var_mean(x, dims=None, correction=1, keepdim=False)", "f32, f64 kept", "kept dims follow",
              "two partial sums over a split dim", "kernel", _var_mean),
        OpRow("matmul", "matmul", "matmul(a, b)", "kept; accumulates in f32", "…mk,…kn→…mn", "linear in {a} or {b}; split k: partial (+)", "library", matmul.matmul),
        OpRow("linear", "matmul", "linear(x, weight, bias=None)", "kept; accumulates in f32", "…k,…nk→…n",
              "linear in {x} or {weight}; split k: partial (+), bias after the sum", "library", matmul.linear),
        OpRow("broadcast", "shape", "broadcast(x, is_broadcast_dim)", "kept", "old dims follow, new dims are free", _NONE, _VIEW, shape.broadcast),
        OpRow("broadcast_in_dim", "shape", "broadcast_in_dim(x, shape, broadcast_dims)", "kept", "equal dims follow, repeated dims are free", _NONE, _VIEW, shape.broadcast_in_dim),
        OpRow("expand", "shape", "expand(x, shape)", "kept", "equal dims follow, repeated dims are free", _NONE, _VIEW, shape.expand),
        OpRow("reshape", "shape", "reshape(x, new_shape)", "kept", "outermost dim of each group follows, in grains", _NONE, _VIEW, shape.reshape),
        OpRow("permute", "shape", "permute(x, dims)", "kept", "dims follow", _NONE, _VIEW, shape.permute),
        OpRow("squeeze", "shape", "squeeze(x, dims, squeeze_expanded=False)", "kept", "kept dims follow", _NONE, _VIEW, shape.squeeze),
        OpRow("slice", "shape", "slice(x, start_indices, end_indices, strides=None)", "kept", "uncut dims follow, cut dims are whole", _NONE, _VIEW, shape.slice_),
        OpRow("cat", "shape", "cat(tensors, dim=0)", "all equal", "other dims follow, dim is whole", "partial operands are reduced first", "kernel", shape.cat),
        OpRow("pad", "shape", "pad(x, pad_widths, value=0)", "kept", "unpadded dims follow, padded dims are whole", "partial operands are reduced first", "kernel", shape.pad),
        *(_scan(name) for name in library.SCANS),
        OpRow("topk", "index", "topk(x, k, dim=-1, largest=True, sorted=False)", "kept; i64", "other dims follow, dim is whole", "partial operands are reduced first", "library", library.topk),
        OpRow("full", "factory", "full(shape, fill_value, dtype)", "as asked", "free", "", "kernel", _full),
        OpRow("iota", "factory", "iota(length, start=0, step=1, dtype=Int)", "as asked", "free", "", "kernel", shape.iota),
        OpRow("size", "size", "size(x, dim)", "i64 scalar", "global size", "", "host", _size),
        OpRow("shape", "size", "shape(x)", "i64 scalars", "global sizes", "", "host", _shape),
    )
}  # fmt: skip


def markdown() -> str:
    """The table as docs/ir.md has it."""
    head = "| op | dtype rule | dims | partial values | runs as |\n|---|---|---|---|---|\n"
    cells = ((r.signature, r.dtype_rule, r.dims, r.laws or "–", r.runs_as) for r in TABLE.values())
    return head + "".join(f"| `{c[0]}` | {' | '.join(x.replace('|', chr(92) + '|') for x in c[1:])} |\n" for c in cells)


__all__ = ["TABLE", "Const", "OpRow", "markdown"]

if __name__ == "__main__":
    print(markdown(), end="")
