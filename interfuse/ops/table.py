"""The op table: one row per op of `fd.ops`.

A row says how an op is called, its dtype rule, which dims follow which, its laws for partial values, what computes it, and how it is written
as nodes. `docs/ir.md` is printed from it (`python -m interfuse.ops.table`). Adding an op is one row here and one test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from interfuse.errors import ArgumentTypeError, DtypeError, NotOnThisDevice, ShapeError
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType, convert
from interfuse.ir.nodes import Broadcast, Const, Operand, Pointwise, Reduce, ReduceOp, Scalar, ScalarCompute, ScalarOp, SizeScalar, Tensor
from interfuse.ir.sizes import Size
from interfuse.ops import attention, elementwise, index, library, matmul, promote, random, reduce, shape
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
    names = {1: "x", 2: "a, b", 3: "condition, a, b" if fixed else "a, b, c"}[op.arity]

    def build(b: Builder, *args: Operand) -> Operand:
        if len(args) != op.arity:
            raise ArgumentTypeError(f"{name}({names}) takes {op.arity} operands, not {len(args)}")
        if fixed and args[0].dtype is not DataType.Bool:
            raise DtypeError(f"{name}: the condition is {args[0].dtype.short}, not bool")
        return pointwise(b, op, rule, args, fixed=fixed)

    return _elementwise_row(op, f"{name}({names})", rule.value, build)


def _elementwise_row(op: ScalarOp, signature: str, dtype_rule: str, build: Callable[..., Any]) -> OpRow:
    operands = [word.partition("=")[0].strip() for word in signature.partition("(")[2].rstrip(")").split(",")]
    laws = "partial operands are reduced first"
    if op.linear_in:
        laws = "linear in " + " or ".join("{" + ", ".join(operands[i] for i in sorted(s)) + "}" for s in op.linear_in)
    runs_as = f"kernel `{op.cpp}`" if op.cpp else "library"
    return OpRow(op.name, "elementwise", signature, dtype_rule, "all dims follow; size 1 repeats", laws, runs_as, build)


_ARITHMETIC = ("add", "sub", "mul", "div", "mod", "fmod", "remainder", "pow", "maximum", "minimum", "neg", "lerp")
_FLOATING = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "exp2", "expm1", "erf", "erfc", "erfinv", "erfcinv", "lgamma"),
    *("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "truediv", "atan2"),
)
_PLAIN = ("relu", "silu", "ceil", "floor", "frac", "round", "trunc", "sign")
_BITWISE = ("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor")
_INTEGRAL = ("bitwise_left_shift", "bitwise_right_shift", "logical_right_shift", "gcd")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_LOGICAL = ("logical_not", "logical_and", "logical_or")
_TEST = ("isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "signbit")
_RULES = {
    Rule.ARITHMETIC: _ARITHMETIC,
    Rule.FLOATING: _FLOATING,
    Rule.PLAIN: _PLAIN,
    Rule.FULL_FLOAT: ("nextafter",),
    Rule.BITWISE: _BITWISE,
    Rule.INTEGRAL: _INTEGRAL,
    Rule.COMPARE: _COMPARE,
    Rule.LOGICAL: _LOGICAL,
    Rule.TEST: _TEST,
    Rule.PART: ("abs", "real"),
}


def _imag(b: Builder, x: Operand) -> Operand:
    if not x.dtype.is_complex:
        raise DtypeError(f"imag: the operand is {x.dtype.short}, not complex")
    return pointwise(b, elementwise.ROWS["imag"], Rule.PART, (x,))


def _complex(b: Builder, re: Operand, im: Operand) -> Operand:
    if re.dtype is not im.dtype or re.dtype not in (DataType.Float, DataType.Double):
        raise DtypeError(f"complex: parts are both f32 or both f64, not {re.dtype.short} and {im.dtype.short}; cast first")
    if isinstance(re, Tensor) != isinstance(im, Tensor):
        raise ArgumentTypeError("complex(re, im) takes two tensors or two scalars")
    return pointwise(b, elementwise.ROWS["complex"], Rule.PLAIN, (re, im), result=re.dtype.complex)


def _bound(name: str, value: Operand, dtype: DataType) -> Scalar:
    if isinstance(value, Tensor):
        raise ArgumentTypeError(f"{name}: {value.name} is a tensor; bounds and values are scalars")
    if value.dtype is dtype:
        return value
    return Const(convert(value.value, dtype), dtype) if isinstance(value, Const) else ScalarCompute(elementwise.CAST, (value,), dtype)


def _clamp(b: Builder, x: Operand, min: Operand | None = None, max: Operand | None = None) -> Operand:
    """max(x, min), then min(…, max), in x's type; a bound that is None does not bind."""
    result = x
    for op, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            result = pointwise(b, elementwise.ROWS[op], Rule.PLAIN, (result, _bound("clamp", bound, x.dtype)))
    return _set(b, x) if result is x else result


def _threshold(b: Builder, x: Operand, threshold: Operand, value: Operand) -> Operand:
    bounds = (_bound("threshold", threshold, x.dtype), _bound("threshold", value, x.dtype))
    return pointwise(b, elementwise.ROWS["threshold"], Rule.PLAIN, (x, *bounds))


def _addcmul(b: Builder, a: Operand, factor: Operand, other: Operand, value: Operand) -> Operand:
    if isinstance(value, Tensor):
        raise ArgumentTypeError(f"addcmul: value is a scalar, not the tensor {value.name}")
    return pointwise(b, elementwise.ROWS["addcmul"], Rule.ARITHMETIC, (a, factor, other, value))


def _triu(b: Builder, x: Tensor, diagonal: int | Scalar = 0) -> Tensor:
    """Zero below the diagonal of the last two dims; diagonal 1 lies above the main one."""
    if x.ndim < 2:
        raise ShapeError(f"triu: the tensor has {x.ndim} dims, and needs 2")
    start = Const(diagonal, DataType.Int) if isinstance(diagonal, int) else cast(b, diagonal, DataType.Int)
    rows = b.emit(Broadcast(b.new((x.shape[-2], 1), DataType.Int), shape.iota(b, x.shape[-2], start), (0,)))  # type: ignore[arg-type]
    kept = pointwise(b, elementwise.ROWS["le"], Rule.COMPARE, (rows, shape.iota(b, x.shape[-1])))
    zero = Const(convert(0, x.dtype), x.dtype)
    return pointwise(b, elementwise.ROWS["where"], Rule.PLAIN, (kept, x, zero), fixed=1)  # type: ignore[return-value]


def _cast(b: Builder, arg: Operand, dtype: DataType) -> Operand:
    if not isinstance(dtype, DataType) or dtype is DataType.Null:
        raise ArgumentTypeError(f"cast: {dtype!r} is not a type")
    if isinstance(arg, Tensor) and arg.dtype is dtype:
        return b.emit(Pointwise(b.new(arg.shape, dtype), elementwise.SET, (arg,)))
    return cast(b, arg, dtype)


def _set(b: Builder, arg: Operand) -> Operand:
    return b.emit(Pointwise(b.new(arg.shape, arg.dtype), elementwise.SET, (arg,))) if isinstance(arg, Tensor) else arg


# ---- reductions -----------------------------------------------------------------------------------------------------------------------------


def _dims(arg: Tensor, dims: int | Sequence[int] | None, what: str) -> tuple[int, ...]:
    if not isinstance(arg, Tensor):
        raise ArgumentTypeError(f"{what}: a scalar has no dims to reduce")
    if dims is None:
        return tuple(range(arg.ndim))
    if not isinstance(dims, (int, list, tuple)):
        raise ArgumentTypeError(f"{what}: dims are an int or a list of ints, not {dims!r}")
    wrapped = tuple(wrap_dim(d, arg.ndim, what) for d in ([dims] if isinstance(dims, int) else dims))
    if not wrapped and arg.ndim:
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

    def build(
        b: Builder,
        arg: Tensor,
        dims: int | Sequence[int] | DataType | None = None,
        keepdim: bool = False,
        dtype: DataType | None = None,
        dim: int | None = None,
    ) -> Tensor:
        if isinstance(dims, DataType):
            dims, dtype = None, dims
        asked = None if dtype is DataType.Null else dtype
        if not sums and asked is not None:
            raise DtypeError(f"{name}: keeps its operand's type; cast the result")
        over = _dims(arg, dims if dim is None else dim, name)
        if not sums and arg.dtype.is_complex:
            raise DtypeError(f"{name}: complex numbers have no order")
        typed = cast(b, arg, asked or (promote.sum_type(arg.dtype) if sums else arg.dtype))
        assert isinstance(typed, Tensor)
        return _reduced(b, op, typed, over, keepdim)

    rule = "bool, ints → i64; else kept" if sums else "kept"
    laws = f"over a split dim: partial ({op.symbol.strip()})" + ("; a partial sum passes through" if name == "sum" else "")
    signature = f"{name}(x, dims=None, keepdim=False{', dtype=None' if sums else ''})"
    return OpRow(name, "reduction", signature, rule, "kept dims follow", laws, "kernel", build)


def _moments(b: Builder, arg: Tensor, over: tuple[int, ...], keepdim: bool) -> tuple[Tensor, Tensor, Size]:
    """Mean (with reduced dims kept as 1), sum of squared differences (real), and count. Two passes; sizes are global, so uneven shards weigh right."""
    count = sizes.product(arg.shape[d] for d in over)
    rows = elementwise.ROWS
    mean = pointwise(b, rows["div"], Rule.ARITHMETIC, (_reduced(b, reduce.SUM, arg, over, True), SizeScalar(count)))
    difference = pointwise(b, rows["sub"], Rule.ARITHMETIC, (arg, mean))
    square = _squared(b, difference)
    assert isinstance(mean, Tensor)
    return mean, _reduced(b, reduce.SUM, square, over, keepdim), count


def _squared(b: Builder, value: Operand) -> Tensor:
    """|value|²: of a complex number the sum of its parts' squares."""
    rows = elementwise.ROWS
    if value.dtype.is_complex:
        re, im = (pointwise(b, rows[part], Rule.PART, (value,)) for part in ("real", "imag"))
        re, im = (pointwise(b, rows["mul"], Rule.ARITHMETIC, (part, part)) for part in (re, im))
        square = pointwise(b, rows["add"], Rule.ARITHMETIC, (re, im))
    else:
        square = pointwise(b, rows["mul"], Rule.ARITHMETIC, (value, value))
    assert isinstance(square, Tensor)
    return square


def _divided(b: Builder, squares: Tensor, count: Size, correction: int) -> Tensor:
    divisor: Size = sizes.maximum(sizes.sub(count, correction), 0) if correction else count
    var = pointwise(b, elementwise.ROWS["div"], Rule.ARITHMETIC, (squares, SizeScalar(divisor)))
    assert isinstance(var, Tensor)
    return var


def _checked_correction(name: str, correction: int) -> int:
    if not isinstance(correction, int):
        raise ArgumentTypeError(f"{name}: correction is an int, not {correction!r}")
    if correction < 0:
        raise ShapeError(f"{name}: correction {correction} is negative")
    return int(correction)


def _var_mean(b: Builder, arg: Tensor, dims: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    over = _dims(arg, dims, "var_mean")
    promote.require_float("var_mean", arg.dtype, low_precision=False)
    less = _checked_correction("var_mean", correction)
    mean, squares, count = _moments(b, arg, over, keepdim)
    return _divided(b, squares, count, less), mean if keepdim or not over else shape.squeeze(b, mean, over)


def _var(b: Builder, arg: Tensor, dims: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> Tensor:
    over = _dims(arg, dims, "var")
    promote.require_float("var", arg.dtype)
    less = _checked_correction("var", correction)
    _, squares, count = _moments(b, _wide(b, arg), over, keepdim)
    return _divided(b, squares, count, less)


def _welford(b: Builder, arg: Tensor, dims: int | Sequence[int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, sum of squared differences, and the count as a tensor of the same shape."""
    over = _dims(arg, dims, "welford")
    promote.require_float("welford", arg.dtype)
    mean, squares, count = _moments(b, _wide(b, arg), over, False)
    return shape.squeeze(b, mean, over) if over else mean, squares, shape.full(b, squares.shape, SizeScalar(count), DataType.Index)


def _wide(b: Builder, arg: Tensor) -> Tensor:
    typed = cast(b, arg, arg.dtype.compute)
    assert isinstance(typed, Tensor)
    return typed


# ---- ops that ATen computes whole ---------------------------------------------------------------------------------------------------------


def _scan(name: str) -> OpRow:
    def build(b: Builder, arg: Tensor, dim: int, init: Scalar | None = None) -> Tensor:
        return library.scan(b, library.SCANS[name], arg, dim, init)

    laws = "linear in {x}" if library.SCANS[name].linear_in else "partial operands are reduced first"
    return OpRow(name, "scan", f"{name}(x, dim, init=None)", "kept", "other dims follow, dim is whole", laws, "library", build)


def _narrow(name: str, signature: str) -> OpRow:
    """An op whose arithmetic no device that plans are made for has."""

    def build(b: Builder, *args: object, **kwargs: object) -> Tensor:
        raise NotOnThisDevice(f"{name}: block-scaled narrow types need a Blackwell GPU; not on this device")

    return OpRow(name, "narrow", signature, "block-scaled narrow types", "whole", "", "nothing: it raises NotOnThisDevice", build)


# ---- sizes ----------------------------------------------------------------------------------------------------------------------------------


def _size(b: Builder, arg: Tensor, dim: int) -> Scalar:
    return SizeScalar(arg.shape[wrap_dim(dim, arg.ndim, "size")])


def _shape(b: Builder, arg: Tensor) -> list[Scalar]:
    return [SizeScalar(s) for s in arg.shape]


def _full(b: Builder, shape_: Sequence[Size], fill_value: Scalar, dtype: DataType) -> Tensor:
    return shape.full(b, shape_, fill_value, dtype)


_VIEW, _NONE, _REDUCED = "kernel index or view", "partial values pass through", "partial operands are reduced first"

TABLE: dict[str, OpRow] = {
    row.name: row
    for row in (
        *(_elementwise(name, rule) for rule, names in _RULES.items() for name in names),
        _elementwise("where", Rule.PLAIN, fixed=1),
        _elementwise_row(elementwise.ROWS["imag"], "imag(x)", "complex → its parts' type; else an error", _imag),
        _elementwise_row(elementwise.ROWS["complex"], "complex(re, im)", "f32, f32 → c64; f64, f64 → c128", _complex),
        _elementwise_row(elementwise.ROWS["threshold"], "threshold(x, threshold, value)", "kept; bounds are cast", _threshold),
        _elementwise_row(elementwise.ROWS["addcmul"], "addcmul(a, b, c, value)", Rule.ARITHMETIC.value, _addcmul),
        OpRow("clamp", "elementwise", "clamp(x, min=None, max=None)", "kept; bounds are cast", "all dims follow", "partial operands are reduced first", "kernel", _clamp),
        OpRow("triu", "elementwise", "triu(x, diagonal=0)", "kept", "all dims follow", "partial operands are reduced first", "kernel", _triu),
        OpRow("cast", "elementwise", "cast(x, dtype)", "as asked", "all dims follow", "linear in {x}", "kernel", _cast),
        OpRow("set", "elementwise", "set(x)", "kept", "all dims follow", "linear in {x}", "kernel", _set),
        *(_reduction(name) for name in reduce.ROWS),
        OpRow("var_mean", "reduction", "var_mean(x, dims=None, correction=1, keepdim=False)", "var: complex → its parts' type; f32, f64 kept", "kept dims follow",
              "two partial sums over a split dim", "kernel", _var_mean),
        OpRow("var", "reduction", "var(x, dims=None, correction=1, keepdim=False)", "half → f32; else kept; complex → its parts' type", "kept dims follow",
              "two partial sums over a split dim", "kernel", _var),
        OpRow("welford", "reduction", "welford(x, dims=None)", "half → f32; else kept; index", "kept dims follow", "two partial sums over a split dim", "kernel", _welford),
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
        OpRow("segment_set", "shape", "segment_set(x)", "kept", "all dims follow", "linear in {x}", "kernel; ends one", shape.segment_set),
        OpRow("stride_order", "shape", "stride_order(x, stride_order)", "kept", "all dims follow", "linear in {x}", "kernel; ends one", shape.stride_order),
        OpRow("index_select", "index", "index_select(x, index, dim)", "kept", "other dims follow x, dim follows the index", "linear in {x}", "library", index.index_select),
        OpRow("select", "index", "select(x, index, dim)", "kept", "other dims follow, dim is whole", _NONE, _VIEW, index.select),
        OpRow("gather", "index", "gather(x, index, dim)", "kept", "dims follow the index; x is whole along dim and where it is longer", "linear in {x}", "library", index.gather),
        OpRow("take_along_axis", "index", "take_along_axis(x, index, dim)", "kept", "dims follow; x is whole along dim; size 1 repeats", "linear in {x}", "library", index.take_along_axis),
        OpRow("scatter", "index", "scatter(x, index, src, dim)", "kept", "dims of equal size follow, dim is whole", _REDUCED, "library", index.scatter),
        OpRow("embedding_fwd", "index", "embedding_fwd(indices, weight, padding_idx=None, max_norm=None, norm_type=None, scale_grad_by_freq=None, sparse=None)",
              "the weight's", "indices' dims, then the weight's last, which is whole with max_norm", "linear in {weight} without max_norm", "library", index.embedding_fwd),
        OpRow("topk", "index", "topk(x, k, dim=-1, largest=True, sorted=False)", "kept; i64", "other dims follow, dim is whole", _REDUCED, "library", index.topk),
        OpRow("argsort", "index", "argsort(x, dim, descending=False, stable=False)", "i64", "other dims follow, dim is whole", _REDUCED, "library", index.argsort),
        OpRow("grouped_mm", "matmul", "grouped_mm(a, b, offsets, scale1=None, scale2=None, alpha=None, bias=None, beta=None, dtype=BFloat16)", "kept; with scales as asked",
              "dims follow, except the one in groups; with scales all are whole", "linear in {a} or {b}; split k: partial (+); with scales reduced first", "library", matmul.grouped_mm),
        OpRow("scaled_mm", "matmul", "scaled_mm(a, b, scale1, scale2, alpha=None, bias=None, beta=None, dtype=BFloat16)", "as asked", "all are whole", _REDUCED, "library", matmul.scaled_mm),
        OpRow("sdpfa_fwd", "attention", "sdpfa_fwd(query, key, value, bias=None, mask=None, dropout_p=None, is_causal=None, scale=None)", "kept; f32; u64; u64",
              "batch and heads follow, and the query's length where it is not causal; whole with dropout", _REDUCED, "library", attention.sdpfa_fwd),
        OpRow("sdpfa_bwd", "attention", "sdpfa_bwd(grad, query, key, value, out, logsumexp, dropout_p, is_causal, seed, offset, scale=None)", "kept",
              "batch and heads follow; whole with dropout", _REDUCED, "library", attention.sdpfa_bwd),
        OpRow("uniform", "random", "uniform(minval, maxval, shape, *, rng_seed=None, rng_offset=None, dtype=Float)", "as asked", "free", "", "library", random.uniform),
        OpRow("normal", "random", "normal(mean, std, shape, *, rng_seed=None, rng_offset=None, dtype=Float)", "as asked", "free", "", "library", random.normal),
        OpRow("rand_like", "random", "rand_like(x)", "kept", "free", "", "library", random.rand_like),
        OpRow("randn_like", "random", "randn_like(x)", "kept", "free", "", "library", random.randn_like),
        _narrow("nv_block_quantize", "nv_block_quantize(x, global_scale=None, swizzle_block_scales=False, block_size=16, dtype=Float4_e2m1fn)"),
        _narrow("nv_grouped_block_quantize", "nv_grouped_block_quantize(x, input_offsets, output_offsets, global_scale=None, block_size=16, dtype=Float4_e2m1fn)"),
        _narrow("preprocess_grouped_matmul_input_sf", "preprocess_grouped_matmul_input_sf(x, input_offsets, output_offsets)"),
        _narrow("cutlass_nvfp4_grouped_mm", "cutlass_nvfp4_grouped_mm(a, b, scale1, scale2, alpha, problem_sizes, expert_offsets, sf_offsets, dtype=BFloat16)"),
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


def families() -> str:
    """docs/ops.md: how every op is called, by family, with what it does to types, placements and partial values."""
    out = "# Ops\n\nPrinted from the op table (`python -m interfuse.ops.table --families`). [ir.md](ir.md) says how to read the rules.\n"
    for family in dict.fromkeys(r.family for r in TABLE.values()):
        out += f"\n## {family.capitalize()}\n"
        for r in (r for r in TABLE.values() if r.family == family):
            out += f"\n**`fd.ops.{r.signature}`**  \n"
            facts = [("types", r.dtype_rule), ("dims", r.dims), ("partial values", r.laws), ("runs as", r.runs_as)]
            out += "; ".join(f"{what}: {told}" for what, told in facts if told) + ".\n"
    return out


__all__ = ["TABLE", "Const", "OpRow", "families", "markdown"]

if __name__ == "__main__":
    import sys

    print(families() if "--families" in sys.argv else markdown(), end="")
