"""Ops that move elements without computing: their shape rules and nodes."""

from __future__ import annotations

from collections.abc import Sequence

from interfuse.errors import ArgumentTypeError, DtypeError, ShapeError
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Broadcast, Cat, Const, Full, Iota, Pad, Permute, Reshape, Scalar, Slice, Tensor
from interfuse.ir.sizes import Size
from interfuse.ops.build import Builder, cast, dims_text, resolve_reshape, size_of, wrap_dim


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
        if arg.shape[d] != 1:
            raise ShapeError(f"squeeze: dim {d} has size {arg.shape[d]}, not 1")
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
    if strides is not None and len(strides) != arg.ndim:
        raise ShapeError(f"slice: {len(strides)} strides for a tensor with {arg.ndim} dims")
    if len(start_indices) != arg.ndim or len(end_indices) != arg.ndim:
        raise ShapeError(f"slice: {len(start_indices)} starts and {len(end_indices)} ends for a tensor with {arg.ndim} dims")
    starts, shape = [], []
    for d, (start, end) in enumerate(zip(start_indices, end_indices, strict=True)):
        if isinstance(start, int) and start < 0:
            raise ShapeError(f"slice: start {start} of dim {d} is negative")
        if isinstance(start, int) and isinstance(end, int) and end < start:
            raise ShapeError(f"slice: end {end} of dim {d} lies before its start {start}")
        if strides is not None and strides[d] != 1:
            raise ShapeError(f"slice: stride {strides[d]} of dim {d}; only 1 is supported")
        size = arg.shape[d]
        if not manual_normalization:
            start, end = sizes.minimum(start, size), sizes.minimum(end, size)
        starts.append(start)
        shape.append(sizes.sub(end, start))
    return b.emit(Slice(b.new(shape, arg.dtype), arg, tuple(starts)))


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
    if fill.dtype.is_float and not arg.dtype.is_float:
        raise DtypeError(f"pad: value of type {fill.dtype.short} for a tensor of {arg.dtype.short}")
    cut = [(-w if isinstance(w, int) and w < 0 else 0) for w in before]
    cut_after = [(-w if isinstance(w, int) and w < 0 else 0) for w in after]
    if any(cut) or any(cut_after):
        kept = [sizes.sub(s, c + e) for s, c, e in zip(arg.shape, cut, cut_after, strict=True)]
        arg = b.emit(Slice(b.new(kept, arg.dtype), arg, tuple(cut)))
    grow = tuple(0 if c else w for c, w in zip(cut, before, strict=True))
    shape = [sizes.add(s, w, 0 if c else a) for s, w, a, c in zip(arg.shape, grow, after, cut_after, strict=True)]
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
    if isinstance(by, Const) and by.value == 0:
        raise ShapeError("iota: step 0")
    wide = DataType.Double if dtype.is_float else DataType.Int
    first, stride = cast(b, begin, wide), cast(b, by, wide)
    assert not isinstance(first, Tensor) and not isinstance(stride, Tensor)
    return b.emit(Iota(b.new((length,), dtype), first, stride))


def as_size(value: object, what: str) -> Size:
    """A size from a Python int or an integer scalar."""
    size = size_of(value)  # type: ignore[arg-type]
    if size is None:
        raise ArgumentTypeError(f"{what}: a size is an int or an integer scalar, not {value!r}")
    return size
