"""Matrix products as contractions over letters."""

from __future__ import annotations

from interfuse.errors import DtypeError, ShapeError
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Broadcast, Contract, Pointwise, Tensor
from interfuse.ir.sizes import Size
from interfuse.ops.build import Builder, cast, dims_text, join, with_rank
from interfuse.ops.elementwise import ADD

_BATCH = "abcdefgh"
_LEAD = "pqrstuvw"


def _same_size(b: Builder, a: Size, c: Size, what: str) -> None:
    equal = sizes.known_equal(a, c)
    if equal is False:
        raise ShapeError(f"{what}: contracted sizes {a} and {c} differ")
    if equal is None:
        b.require_equal(a, c, f"{what}: contracted sizes {a} and {c} must be equal")


def _check_types(a: Tensor, c: Tensor, what: str) -> None:
    if a.dtype is not c.dtype:
        raise DtypeError(f"{what}: operands are {a.dtype.short} and {c.dtype.short}; cast one")
    if a.dtype is DataType.Bool:
        raise DtypeError(f"{what}: bool has no matrix product; cast first")


def matmul(b: Builder, arg1: Tensor, arg2: Tensor) -> Tensor:
    """torch.matmul's shapes; the result has the operands' type and is accumulated in float."""
    _check_types(arg1, arg2, "matmul")
    if not arg1.ndim or not arg2.ndim:
        raise ShapeError(f"matmul: {dims_text(arg1.shape)} and {dims_text(arg2.shape)}: both operands need a dim")
    _same_size(b, arg1.shape[-1], arg2.shape[-1 if arg2.ndim == 1 else -2], f"matmul of {dims_text(arg1.shape)} and {dims_text(arg2.shape)}")
    batch = max(arg1.ndim - 2, arg2.ndim - 2, 0)
    a_letters, b_letters, out_letters, shape = "", "", "", []
    for i in range(batch):
        ai, bi = arg1.ndim - 2 - batch + i, arg2.ndim - 2 - batch + i
        sa = arg1.shape[ai] if ai >= 0 and arg1.ndim > 1 else None
        sb = arg2.shape[bi] if bi >= 0 and arg2.ndim > 1 else None
        size = join(b, 1 if sa is None else sa, 1 if sb is None else sb, "matmul: batch dims")
        if sa is not None:
            a_letters += _BATCH[i] if sa == size or sa != 1 else _BATCH[i].upper()
        if sb is not None:
            b_letters += _BATCH[i] if sb == size or sb != 1 else _BATCH[i].upper()
        out_letters += _BATCH[i]
        shape.append(size)
    if arg1.ndim > 1:
        a_letters, out_letters, shape = a_letters + "m", out_letters + "m", [*shape, arg1.shape[-2]]
    if arg2.ndim > 1:
        out_letters, shape = out_letters + "n", [*shape, arg2.shape[-1]]
    out = b.new(shape, arg1.dtype)
    return b.emit(Contract(out, arg1, arg2, a_letters + "k", b_letters + ("kn" if arg2.ndim > 1 else "k"), out_letters))


def linear(b: Builder, arg1: Tensor, arg2: Tensor, bias: Tensor | None = None) -> Tensor:
    """x[…, k] · w[…, n, k]ᵀ + bias[…, n]; leading dims of the weight lead the result. The bias is added in float and rounded once."""
    _check_types(arg1, arg2, "linear")
    what = f"linear of {dims_text(arg1.shape)} and {dims_text(arg2.shape)}"
    if not arg1.ndim or arg2.ndim < 2:
        raise ShapeError(f"{what}: the input needs a dim and the weight two")
    _same_size(b, arg1.shape[-1], arg2.shape[-1], what)
    rows, leading = _BATCH[: arg1.ndim - 1], _LEAD[: arg2.ndim - 2]
    shape = (*arg2.shape[:-2], *arg1.shape[:-1], arg2.shape[-2])
    out = b.emit(Contract(b.new(shape, arg1.dtype), arg1, arg2, rows + "k", leading + "nk", leading + rows + "n"))
    if bias is None:
        return out
    if bias.dtype is not out.dtype:
        raise DtypeError(f"linear: the bias is {bias.dtype.short}, the product {out.dtype.short}; cast one")
    if bias.ndim != len(leading) + 1 and bias.ndim != 1:
        raise ShapeError(f"{what}: bias {dims_text(bias.shape)} has {bias.ndim} dims, not {len(leading) + 1}")
    _same_size(b, bias.shape[-1], arg2.shape[-2], f"{what}: the bias's last size")
    return add_bias(b, out, bias)


def add_bias(b: Builder, out: Tensor, bias: Tensor) -> Tensor:
    """out + bias along the last dim and, where the bias has more dims, along the leading ones."""
    if bias.ndim == 1:
        aligned = with_rank(b, bias, out.ndim)
    else:
        shape: list[Size] = [1] * out.ndim
        dims = (*range(bias.ndim - 1), out.ndim - 1)
        for i, d in enumerate(dims):
            shape[d] = bias.shape[i]
        aligned = b.emit(Broadcast(b.new(shape, bias.dtype), bias, dims))
    compute = out.dtype.compute
    left, right = cast(b, out, compute), cast(b, aligned, compute)
    total = b.emit(Pointwise(b.new(out.shape, compute), ADD, (left, right)))
    result = cast(b, total, out.dtype)
    assert isinstance(result, Tensor)
    return result
