"""Ops that move elements without computing: their shape rules and nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from interfuse.errors import DtypeError, ShapeError
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Broadcast, Cat, Const, Full, Iota, Pad, Permute, Pointwise, Reshape, Scalar, Slice, Tensor
from interfuse.ir.sizes import Size
from interfuse.ops import promote
from interfuse.ops.build import Builder, cast, dims_text, resolve_reshape, wrap_dim
from interfuse.ops.elementwise import SEGMENT_SET


def broadcast(b: Builder, arg: Tensor, is_broadcast_dim: Sequence[bool]) -> Tensor:
    kept = [i for i, new in enumerate(is_broadcast_dim) if not new]
    if len(kept) != arg.ndim:
        raise ShapeError(f"broadcast: {len(kept)} of the {len(is_broadcast_dim)} flags are False, but the tensor has {arg.ndim} dims")
    shape: list[Size] = [1] * len(is_broadcast_dim)
    for i, d in enumerate(kept):
        shape[d] = arg.shape[i]
    return b.emit(Broadcast(b.new(shape, arg.dtype), arg, tuple(kept)))


def broadcast_in_dim(b: Builder, arg: Tensor, shape: Sequence[Size], broadcast_dims: Sequence[int]) -> Tensor:
    if len(broadcast_dims) != arg.ndim:
        raise ShapeError(f"broadcast_in_dim: {len(broadcast_dims)} broadcast_dims for a tensor with {arg.ndim} dims")
    dims = tuple(wrap_dim(d, len(shape), "broadcast_in_dim") for d in broadcast_dims)
    if list(dims) != sorted(set(dims)):
        raise ShapeError(f"broadcast_in_dim: broadcast_dims {list(broadcast_dims)} must be strictly increasing")
    for i, d in enumerate(dims):
        if arg.shape[i] == 1:
            continue
        if sizes.may_be_one(arg.shape[i]):
            wanted = sizes.joined(arg.shape[i], shape[d])
            b.require_equal(wanted, shape[d], f"broadcast_in_dim: dim {i} has size {arg.shape[i]}, not 1 and not the {shape[d]} of out dim {d}")
            continue
        equal = sizes.known_equal(arg.shape[i], shape[d])
        if equal is False:
            raise ShapeError(f"broadcast_in_dim: dim {i} has size {arg.shape[i]}, not 1 and not the {shape[d]} of out dim {d}")
        if equal is None:
            b.require_equal(arg.shape[i], shape[d], f"broadcast_in_dim: dim {i} and out dim {d} must have equal sizes")
    if tuple(shape) == arg.shape and dims == tuple(range(arg.ndim)):
        return arg
    return b.emit(Broadcast(b.new(shape, arg.dtype), arg, dims))


def expand(b: Builder, arg: Tensor, shape: Sequence[Size]) -> Tensor:
    lead = len(shape) - arg.ndim
    if lead < 0:
        raise ShapeError(f"expand: {dims_text(arg.shape)} has more dims than {dims_text(shape)}")
    full = [arg.shape[i - lead] if i >= lead and s == -1 else s for i, s in enumerate(shape)]
    return broadcast_in_dim(b, arg, full, tuple(range(lead, len(shape))))


def reshape(b: Builder, arg: Tensor, new_shape: Sequence[Size]) -> Tensor:
    shape = resolve_reshape(b, arg.shape, new_shape)
    return arg if shape == arg.shape else b.emit(Reshape(b.new(shape, arg.dtype), arg))


def permute(b: Builder, arg: Tensor, dims: Sequence[int]) -> Tensor:
    order = tuple(wrap_dim(d, arg.ndim, "permute") for d in dims)
    if sorted(order) != list(range(arg.ndim)):
        raise ShapeError(f"permute: {list(dims)} does not name each of the {arg.ndim} dims once")
    return b.emit(Permute(b.new((arg.shape[d] for d in order), arg.dtype), arg, order))


def squeeze(b: Builder, arg: Tensor, dims: Sequence[int], squeeze_expanded: bool = False) -> Tensor:
    gone = {wrap_dim(d, arg.ndim, "squeeze") for d in dims}
    if len(gone) != len(dims):
        raise ShapeError(f"squeeze: {list(dims)} names a dim twice")
    for d in gone:
        if sizes.may_be_one(arg.shape[d]):
            b.require_equal(arg.shape[d], 1, f"squeeze: dim {d} is not 1")
        elif arg.shape[d] != 1 and not squeeze_expanded:
            raise ShapeError(f"squeeze: dim {d} has size {arg.shape[d]}, not 1")
    if any(arg.shape[d] != 1 for d in gone):
        thin = tuple(1 if d in gone else s for d, s in enumerate(arg.shape))
        arg = b.emit(Slice(b.new(thin, arg.dtype), arg, (0,) * arg.ndim))
    return b.emit(Reshape(b.new((s for d, s in enumerate(arg.shape) if d not in gone), arg.dtype), arg))


def slice_(
    b: Builder,
    arg: Tensor,
    start_indices: Sequence[Size],
    end_indices: Sequence[Size],
    strides: Sequence[int] | None = None,
    manual_normalization: bool = False,
) -> Tensor:
    """Elements start ≤ i < end of every dim, cut to the tensor as NumPy does unless `manual_normalization`."""
    given = f"slice of {dims_text(arg.shape)} from {dims_text(start_indices)} to {dims_text(end_indices)}"
    if strides is not None and len(strides) != len(start_indices):
        raise ShapeError(f"Slice start_indices and strides don't match! {given} has {len(strides)} strides")
    if len(start_indices) != arg.ndim:
        raise ShapeError(f"Number of tensor dimensions does not match slice dimensions! {given}")
    if len(end_indices) != arg.ndim:
        raise ShapeError(f"Slice indexing attribute dimensions don't match! {given}")
    starts, shape = [], []
    for d, (start, end) in enumerate(zip(start_indices, end_indices, strict=True)):
        if isinstance(start, int) and start < 0:
            raise ShapeError(f"Slice operation start_indices must be greater than or equal to 0. Start {start} of dim {d}: {given}")
        if not isinstance(start, int) and start != (least := sizes.maximum(start, 0)):
            b.require_equal(least, start, f"slice: start {start} of dim {d} is negative")
        if isinstance(start, int) and isinstance(end, int) and end < start:
            raise ShapeError(f"Slice operation end_indices must be greater than or equal to start_indices. Dim {d}: {given}")
        if strides is not None and strides[d] != 1:
            raise ShapeError(f"nvFuser Limitation: All slice operation strides must be of const size 1. Stride {strides[d]} of dim {d}")
        size = arg.shape[d]
        if not manual_normalization:
            start, end = sizes.minimum(start, size), sizes.minimum(end, size)
        elif end != size and (most := sizes.minimum(end, size)) != end:
            b.require_equal(most, end, f"slice: end {end} of dim {d} lies beyond its size {size}")
        starts.append(start)
        shape.append(sizes.sub(end, start))
    return b.emit(Slice(b.new(shape, arg.dtype), arg, tuple(starts)))


def _cut(width: Size) -> Size:
    """How many elements a negative width takes away."""
    return max(-width, 0) if isinstance(width, int) else sizes.maximum(sizes.mul(-1, width), 0)


def pad(b: Builder, arg: Tensor, pad_widths: Sequence[Size], value: Scalar | None = None) -> Tensor:
    """Widths are (before, after) pairs, the last dim first, as in torch.nn.functional.pad; negative widths cut."""
    if len(pad_widths) % 2 or len(pad_widths) > 2 * arg.ndim:
        raise ShapeError(f"pad: {len(pad_widths)} widths for a tensor with {arg.ndim} dims; two per dim, the last dim first")
    before: list[Size] = [0] * arg.ndim
    after: list[Size] = [0] * arg.ndim
    for i in range(len(pad_widths) // 2):
        before[-1 - i], after[-1 - i] = pad_widths[2 * i], pad_widths[2 * i + 1]
    for d in range(arg.ndim):
        size = sizes.add(arg.shape[d], before[d], after[d])
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"pad: dim {d} of size {arg.shape[d]} with widths {before[d]} and {after[d]} would have size {size}")
    fill = value if value is not None else Const(False if arg.dtype is DataType.Bool else 0.0 if arg.dtype.is_float else 0, arg.dtype)
    if promote.kind(fill.dtype) != promote.kind(arg.dtype):
        raise DtypeError(f"pad: value of type {fill.dtype.short} for a tensor of {arg.dtype.short}")
    cut, cut_after = [_cut(w) for w in before], [_cut(w) for w in after]
    if any(cut) or any(cut_after):
        kept = [sizes.sub(s, c + e) for s, c, e in zip(arg.shape, cut, cut_after, strict=True)]
        arg = b.emit(Slice(b.new(kept, arg.dtype), arg, tuple(cut)))
    grow = tuple(sizes.add(w, c) for c, w in zip(cut, before, strict=True))
    shape = [sizes.add(s, w, a, c) for s, w, a, c in zip(arg.shape, grow, after, cut_after, strict=True)]
    scalar = cast(b, fill, arg.dtype)
    assert not isinstance(scalar, Tensor)
    return b.emit(Pad(b.new(shape, arg.dtype), arg, grow, scalar))


def cat(b: Builder, tensors: Sequence[Tensor], dim: int = 0, manual_padding: bool = False) -> Tensor:
    if not tensors:
        raise ShapeError("cat: no tensors")
    first = tensors[0]
    axis = wrap_dim(dim, first.ndim, "cat")
    for t in tensors[1:]:
        if t.ndim != first.ndim:
            raise ShapeError(f"cat: {dims_text(first.shape)} and {dims_text(t.shape)} have different numbers of dims")
        if t.dtype is not first.dtype:
            raise DtypeError(f"cat: {first.dtype.short} and {t.dtype.short}; cast first")
        for d in range(first.ndim):
            equal = True if d == axis else sizes.known_equal(first.shape[d], t.shape[d])
            if equal is False:
                raise ShapeError(f"cat along dim {axis}: dim {d} of {dims_text(first.shape)} and {dims_text(t.shape)} differs")
            if equal is None:
                b.require_equal(first.shape[d], t.shape[d], f"cat along dim {axis}: dim {d} must have equal sizes")
    if len(tensors) == 1:
        return first
    shape = [sizes.add(*(t.shape[axis] for t in tensors)) if d == axis else s for d, s in enumerate(first.shape)]
    return b.emit(Cat(b.new(shape, first.dtype), tuple(tensors), axis))


def full(b: Builder, shape: Sequence[Size], fill_value: Scalar, dtype: DataType) -> Tensor:
    bad = [s for s in shape if isinstance(s, int) and s < 0]
    if bad:
        raise ShapeError(f"full: {bad[0]} is not a size")
    value = cast(b, fill_value, dtype)
    assert not isinstance(value, Tensor)
    return b.emit(Full(b.new(shape, dtype), value))


def iota(b: Builder, length: Size, start: Scalar | None = None, step: Scalar | None = None, dtype: DataType = DataType.Int) -> Tensor:
    begin, by = start or Const(0, DataType.Int), step or Const(1, DataType.Int)
    for scalar, what in ((begin, "start"), (by, "step")):
        if scalar.dtype.is_complex:
            raise DtypeError(f"iota: the {what} is {scalar.dtype.short}")
        if isinstance(scalar, Const) and not math.isfinite(scalar.value):  # type: ignore[arg-type]
            raise ShapeError(f"iota: the {what} is {scalar.value}")
    if isinstance(by, Const) and by.value == 0:
        raise ShapeError("iota: step 0")
    wide = DataType.Double if dtype.is_float else DataType.Int
    first, stride = cast(b, begin, wide), cast(b, by, wide)
    assert not isinstance(first, Tensor) and not isinstance(stride, Tensor)
    return b.emit(Iota(b.new((length,), dtype), first, stride))


def segment_set(b: Builder, arg: Tensor) -> Tensor:
    """A copy that no kernel both makes and reads."""
    return b.emit(Pointwise(b.new(arg.shape, arg.dtype), SEGMENT_SET, (arg,)))


def stride_order(b: Builder, arg: Tensor, stride_order: Sequence[int]) -> Tensor:
    """A copy that lies in memory in another order of dims: `stride_order[i]` counts the dims that lie inside dim i."""
    ranks = [wrap_dim(d, arg.ndim, "stride_order") for d in stride_order]
    if sorted(ranks) != list(range(arg.ndim)):
        raise ShapeError(f"stride_order: {list(stride_order)} does not rank each of the {arg.ndim} dims once")
    outermost_first = sorted(range(arg.ndim), key=lambda d: -ranks[d])
    dense = segment_set(b, permute(b, arg, outermost_first))
    return permute(b, dense, [outermost_first.index(d) for d in range(arg.ndim)])
