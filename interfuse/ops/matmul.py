"""Matrix products as contractions over letters."""

from __future__ import annotations

from collections.abc import Callable

import torch

from interfuse.errors import DtypeError, NotOnThisDevice, ShapeError
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Aten, AtenOp, Broadcast, Contract, Pointwise, Tensor, operands
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


# ---- groups and scales ------------------------------------------------------------------------------------------------------------------------

Letters = tuple[int | None, ...]


def _grouped(a: torch.Tensor, c: torch.Tensor, ends: list[int], product: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
    """Group g's product for every g; offsets are the ends of the groups, over the dim that one operand has cut into groups."""
    starts = [0, *ends[:-1]]
    if a.ndim == 2 and c.ndim == 2:
        return torch.stack([product(a[:, i:j], c[i:j], g) for g, (i, j) in enumerate(zip(starts, ends, strict=True))])
    blocks = [product(a[i:j], c[g], g) if a.ndim == 2 else product(a[g], c[:, i:j], g) for g, (i, j) in enumerate(zip(starts, ends, strict=True))]
    whole = a.shape[0] if a.ndim == 2 else c.shape[1]
    dim = 0 if a.ndim == 2 else 1
    joined = torch.cat(blocks, dim)
    missing = whole - joined.shape[dim]
    if not missing:
        return joined
    rest = [missing if d == dim else n for d, n in enumerate(joined.shape)]
    return torch.cat([joined, joined.new_zeros(rest)], dim)


def _grouped_mm(a: torch.Tensor, c: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return _grouped(a, c, offsets.tolist(), lambda x, y, _: torch.mm(x, y))


def _scaled_grouped_mm(
    a: torch.Tensor, c: torch.Tensor, offsets: torch.Tensor, scale1: torch.Tensor, scale2: torch.Tensor, *rest: torch.Tensor,
    has_alpha: bool, has_bias: bool, has_beta: bool, dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    ends = offsets.tolist()
    starts = [0, *ends[:-1]]

    def product(x: torch.Tensor, y: torch.Tensor, g: int) -> torch.Tensor:
        s1 = scale1[g] if scale1.ndim == 3 else scale1[starts[g] : ends[g]]
        s2 = scale2[g] if scale2.ndim == 3 else scale2[:, starts[g] : ends[g]]
        return torch.mm(x.float(), y.float()) * s1 * s2

    return _epilogue(_grouped(a, c, ends, product), rest, has_alpha, has_bias, has_beta).to(dtype)


def _epilogue(product: torch.Tensor, rest: tuple[torch.Tensor, ...], has_alpha: bool, has_bias: bool, has_beta: bool) -> torch.Tensor:
    """alpha * product + beta * bias."""
    given = iter(rest)
    if has_alpha:
        product = product * next(given)
    bias = next(given).float() if has_bias else None
    beta = next(given) if has_beta else None
    if bias is None:
        return product
    return product + (bias if beta is None else bias * beta)


def _spread(scale: torch.Tensor, shape: torch.Size, block_dim: int) -> torch.Tensor:
    """A scale of every element: one per tensor, per row or column, or per block along `block_dim`."""
    scale = scale.float()
    if scale.numel() == 1 or 1 in scale.shape:
        return scale
    return scale.repeat_interleave(shape[block_dim] // scale.shape[block_dim], block_dim)


def _scaled_mm(
    a: torch.Tensor, c: torch.Tensor, scale1: torch.Tensor, scale2: torch.Tensor, *rest: torch.Tensor,
    has_alpha: bool, has_bias: bool, has_beta: bool, dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """Scales of blocks lie as their operand's rows do: [m, k / block] and [n, k / block]."""
    left = a.float() * _spread(scale1, a.shape, 1)
    blocks = scale2.numel() > 1 and 1 not in scale2.shape
    right = c.float() * (_spread(scale2, c.t().shape, 1).t() if blocks else scale2.float())
    return _epilogue(torch.mm(left, right), rest, has_alpha, has_bias, has_beta).to(dtype)


def _grouped_letters(a: Tensor, c: Tensor) -> tuple[Letters, Letters, Letters]:
    """m and n follow where no group cuts them; a k that no group cuts is summed over."""
    m, k, n = 0, 1, 2
    if a.ndim == 2 and c.ndim == 2:
        return (m, None), (None, n), (None, m, n)
    if a.ndim == 2:
        return (None, k), (None, k, n), (None, n)
    return (None, m, k), (k, None), (m, None)


def _grouped_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    a, c, _ = operands(node)
    left, right, out = _grouped_letters(a, c)
    return (left, right, (None,)), out


def _whole_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Everything is whole."""
    return tuple((None,) * t.ndim for t in operands(node)), (None,) * node.out.ndim


GROUPED_MM = AtenOp("grouped_mm", _grouped_mm, _grouped_dims, linear_in=(frozenset({0}), frozenset({1})))
SCALED_GROUPED_MM = AtenOp("scaled_grouped_mm", _scaled_grouped_mm, _whole_dims)
SCALED_MM = AtenOp("scaled_mm", _scaled_mm, _whole_dims)


def _grouped_shape(b: Builder, mat1: Tensor, mat2: Tensor, offsets: Tensor) -> tuple[Size, ...]:
    what = f"grouped_mm of {dims_text(mat1.shape)} and {dims_text(mat2.shape)}"
    if not offsets.dtype.is_int or offsets.ndim != 1:
        raise ShapeError(f"{what}: offsets are a vector of integers, not {offsets!r}")
    if {mat1.ndim, mat2.ndim} not in ({2}, {2, 3}):
        raise ShapeError(f"{what}: one operand has two dims, the other two or three")
    _same_size(b, mat1.shape[-1], mat2.shape[-2], what)
    groups = offsets.shape[0]
    if mat1.ndim == mat2.ndim:
        return groups, mat1.shape[0], mat2.shape[1]
    stacked = mat1 if mat1.ndim == 3 else mat2
    if sizes.known_equal(stacked.shape[0], groups) is not True:
        b.require_equal(stacked.shape[0], groups, f"{what}: as many groups as offsets")
    return mat1.shape[-2], mat2.shape[-1]


def grouped_mm(
    b: Builder, mat1: Tensor, mat2: Tensor, offsets: Tensor, scale1: Tensor | None = None, scale2: Tensor | None = None, alpha: Tensor | None = None,
    bias: Tensor | None = None, beta: Tensor | None = None, dtype: DataType = DataType.BFloat16, output_block_scale_size: int = 0,
    output_block_scale_dtype: DataType = DataType.BFloat16, output_gamma: bool = False,
) -> Tensor | tuple[Tensor | None, ...]:  # fmt: skip
    """Products of groups: [m, k] × [k, n] → [g, m, n], groups of k; [m, k] × [g, k, n] → [m, n], groups of m; [g, m, k] × [k, n] → [m, n],
    groups of n. With scales also (None, None) for the scales of the output, which are not made."""
    _check_types(mat1, mat2, "grouped_mm")
    shape = _grouped_shape(b, mat1, mat2, offsets)
    if scale1 is None and scale2 is None:
        return b.emit(Aten(b.new(shape, mat1.dtype), GROUPED_MM, (mat1, mat2, offsets)))
    if scale1 is None or scale2 is None:
        raise ShapeError("grouped_mm: scale1 and scale2 are given together or not at all")
    tensors = (mat1, mat2, offsets, scale1, scale2)
    return _scaled(b, SCALED_GROUPED_MM, shape, tensors, alpha, bias, beta, dtype, output_block_scale_size, output_gamma)


def scaled_mm(
    b: Builder, mat1: Tensor, mat2: Tensor, scale1: Tensor, scale2: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None,
    beta: Tensor | None = None, dtype: DataType = DataType.BFloat16, output_block_scale_size: int = 0,
    output_block_scale_dtype: DataType = DataType.BFloat16, output_gamma: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """[m, k] × [k, n] with a scale per tensor, per row and column, or per block of k; (result, None, None)."""
    what = f"scaled_mm of {dims_text(mat1.shape)} and {dims_text(mat2.shape)}"
    if mat1.ndim != 2 or mat2.ndim != 2:
        raise ShapeError(f"{what}: both operands have two dims")
    _same_size(b, mat1.shape[1], mat2.shape[0], what)
    shape = (mat1.shape[0], mat2.shape[1])
    return _scaled(b, SCALED_MM, shape, (mat1, mat2, scale1, scale2), alpha, bias, beta, dtype, output_block_scale_size, output_gamma)


def _scaled(
    b: Builder, op: AtenOp, shape: tuple[Size, ...], tensors: tuple[Tensor, ...], alpha: Tensor | None, bias: Tensor | None, beta: Tensor | None,
    dtype: DataType, block_size: int, gamma: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if block_size or gamma:
        raise NotOnThisDevice(f"{op.name}: scales of the output need a device that computes in narrow types")
    given = tuple(t for t in (alpha, bias, beta) if t is not None)
    attrs = (("has_alpha", alpha is not None), ("has_bias", bias is not None), ("has_beta", beta is not None), ("dtype", dtype))
    return b.emit(Aten(b.new(shape, dtype), op, (*tensors, *given), attrs)), None, None
