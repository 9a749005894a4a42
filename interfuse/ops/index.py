"""Ops that look up, sort and scatter: ATen computes them whole. One `AtenOp` and one builder each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from interfuse.errors import DtypeError, ShapeError
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Aten, AtenOp, Const, Operand, Reshape, Scalar, Slice, Tensor, operands
from interfuse.ir.sizes import Size
from interfuse.ops.build import Builder, as_size, cast, dims_text, join, wrap_dim

Letters = tuple[int | None, ...]
_DATA = (frozenset({0}),)


def attribute(node: Aten, name: str) -> object:
    return dict(node.attrs)[name]


def require_index(index: Tensor, what: str) -> None:
    if not index.dtype.is_int:
        raise DtypeError(f"{what}: indices are integers, not {index.dtype.short}")


# ---- looking up -----------------------------------------------------------------------------------------------------------------------------


def _index_select_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Other dims follow the data, the dim itself follows the index."""
    data, index = operands(node)
    gone, new = attribute(node, "dim"), data.ndim
    row = tuple(range(data.ndim))
    out = tuple(new if d == gone and index.ndim else None if d == gone else d for d in row)
    return (tuple(None if d == gone else d for d in row), (new,) * index.ndim), out


INDEX_SELECT = AtenOp("index_select", lambda a, index, dim: torch.index_select(a, dim, index), _index_select_dims, linear_in=_DATA)


def index_select(b: Builder, arg: Tensor, index: Tensor, dim: int) -> Tensor:
    """Slices of `arg` along `dim`, in the order of a 0- or 1-dim index."""
    require_index(index, "index_select")
    axis = wrap_dim(dim, arg.ndim, "index_select")
    if index.ndim > 1:
        raise ShapeError(f"index_select: the index has {index.ndim} dims ({dims_text(index.shape)}), not 0 or 1")
    shape = tuple((index.shape[0] if index.ndim else 1) if d == axis else s for d, s in enumerate(arg.shape))
    return b.emit(Aten(b.new(shape, arg.dtype), INDEX_SELECT, (arg, index), (("dim", axis),)))


def select(b: Builder, arg: Tensor, index: Scalar, dim: int) -> Tensor:
    """The slice number `index` along `dim`, which vanishes."""
    axis = wrap_dim(dim, arg.ndim, "select")
    position, size = as_size(b, index, "select"), arg.shape[axis]
    if isinstance(position, int) and position < 0:
        position = sizes.add(size, position)
    inside = sizes.minimum(sizes.maximum(position, 0), sizes.sub(size, 1))
    b.require_equal(inside, position, f"select: index {position} along dim {axis} of size {size}")
    thin = tuple(1 if d == axis else s for d, s in enumerate(arg.shape))
    starts = tuple(position if d == axis else 0 for d in range(arg.ndim))
    cut = b.emit(Slice(b.new(thin, arg.dtype), arg, starts))
    return b.emit(Reshape(b.new((s for d, s in enumerate(arg.shape) if d != axis), arg.dtype), cut))


def _gather_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Data and index follow together where they are equally long; along the dim the index alone does. A longer dim of the data is whole, and so
    is the index there, whose positions count in it."""
    data, index = operands(node)
    gone = attribute(node, "dim")
    row = tuple(d if d == gone or data.shape[d] == index.shape[d] else None for d in range(index.ndim))
    return (tuple(None if d == gone else letter for d, letter in enumerate(row)), row), row


GATHER = AtenOp("gather", lambda a, index, dim: torch.gather(a, dim, index.long()), _gather_dims, linear_in=_DATA)


def gather(b: Builder, arg: Tensor, index: Tensor, dim: int) -> Tensor:
    """torch.gather: the result has the index's shape, which may be shorter than the data's along other dims."""
    require_index(index, "gather")
    axis = wrap_dim(dim, arg.ndim, "gather")
    if index.ndim != arg.ndim:
        raise ShapeError(f"gather: {dims_text(arg.shape)} and its index {dims_text(index.shape)} have different numbers of dims")
    for d in range(arg.ndim):
        _no_longer(b, index.shape[d], arg.shape[d], d, axis, "gather")
    return b.emit(Aten(b.new(index.shape, arg.dtype), GATHER, (arg, index), (("dim", axis),)))


def _no_longer(b: Builder, inner: Size, outer: Size, d: int, axis: int, what: str) -> None:
    """The index of dim d may not be longer than the data, except along the axis."""
    if d != axis and inner != outer:
        b.require_equal(
            sizes.minimum(inner, outer), inner, f"{what} along dim {axis}: dim {d} of the index ({inner}) is longer than the data's ({outer})"
        )


def _along_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Every dim follows what is as long as the result; the data's dim is whole."""
    data, index = operands(node)
    gone, out = attribute(node, "dim"), node.out.shape
    row = tuple(range(index.ndim))
    follows = tuple(d if d != gone and data.shape[d] == out[d] else None for d in row)
    return (follows, tuple(d if index.shape[d] == out[d] else None for d in row)), row


TAKE_ALONG_AXIS = AtenOp("take_along_axis", lambda a, index, dim: torch.take_along_dim(a, index.long(), dim), _along_dims, linear_in=_DATA)


def take_along_axis(b: Builder, arg: Tensor, index: Tensor, dim: int) -> Tensor:
    """torch.take_along_dim: dims other than `dim` broadcast."""
    require_index(index, "take_along_axis")
    axis = wrap_dim(dim, arg.ndim, "take_along_axis")
    if index.ndim != arg.ndim:
        raise ShapeError(f"take_along_axis: {dims_text(arg.shape)} and its index {dims_text(index.shape)} have different numbers of dims")
    shape = tuple(i if d == axis else join(b, a, i, "take_along_axis") for d, (a, i) in enumerate(zip(arg.shape, index.shape, strict=True)))
    return b.emit(Aten(b.new(shape, arg.dtype), TAKE_ALONG_AXIS, (arg, index), (("dim", axis),)))


# ---- scattering ---------------------------------------------------------------------------------------------------------------------------------


def _scatter(a: torch.Tensor, index: torch.Tensor, src: torch.Tensor | bool | int | float, dim: int) -> torch.Tensor:
    return torch.scatter(a, dim, index.long(), src)


def _scatter_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """A dim other than `dim` follows where data, index and source are equally long."""
    data, *others = operands(node)
    gone = attribute(node, "dim")
    row = tuple(d if d != gone and all(t.shape[d] == data.shape[d] for t in others) else None for d in range(data.ndim))
    return (row,) * (1 + len(others)), row


SCATTER = AtenOp("scatter", _scatter, _scatter_dims)


def scatter(b: Builder, arg: Tensor, index: Tensor, src: Operand, dim: int) -> Tensor:
    """A copy of `arg` in which the elements that the index names along `dim` are those of `src`, a tensor or a scalar."""
    require_index(index, "scatter")
    axis = wrap_dim(dim, arg.ndim, "scatter")
    tensors = [index, *([src] if isinstance(src, Tensor) else [])]
    for t in tensors:
        if t.ndim != arg.ndim:
            raise ShapeError(f"scatter: {dims_text(arg.shape)} and {dims_text(t.shape)} have different numbers of dims")
    for d in range(arg.ndim):
        _no_longer(b, index.shape[d], arg.shape[d], d, axis, "scatter")
        if isinstance(src, Tensor):
            _no_longer(b, index.shape[d], src.shape[d], d, -1, "scatter")
    if isinstance(src, Tensor) and src.dtype is not arg.dtype:
        raise DtypeError(f"scatter: the source is {src.dtype.short}, the data {arg.dtype.short}; cast one")
    return b.emit(Aten(b.new(arg.shape, arg.dtype), SCATTER, (arg, index, cast(b, src, arg.dtype)), (("dim", axis),)))


# ---- embedding ------------------------------------------------------------------------------------------------------------------------------------


def _embedding(indices: torch.Tensor, weight: torch.Tensor, *norm: float) -> torch.Tensor:
    """torch.nn.functional.embedding, whose `max_norm` would change the weight in place; `norm` is nothing or (max_norm, norm_type)."""
    rows = torch.embedding(weight, indices.long())
    if norm and rows.numel():
        flat = rows.view(-1, rows.shape[-1])
        torch.embedding_renorm_(flat, torch.arange(flat.shape[0]), *norm)
    return rows


def _embedding_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Indices lead; the weight's last dim follows unless the norm over it is needed."""
    indices, _ = operands(node)
    row = tuple(range(indices.ndim))
    last = indices.ndim if node.op is EMBEDDING else None
    return (row, (None, last)), (*row, last)


EMBEDDING = AtenOp("embedding_fwd", _embedding, _embedding_dims, linear_in=(frozenset({1}),))
RENORMED = AtenOp("embedding_fwd", _embedding, _embedding_dims)


def embedding_fwd(
    b: Builder, input: Tensor, weight: Tensor, padding_idx: Scalar | None = None, max_norm: Scalar | None = None, norm_type: Scalar | None = None,
    scale_grad_by_freq: Scalar | None = None, sparse: Scalar | None = None,
) -> Tensor:  # fmt: skip
    """Rows of `weight` by index, shortened to `max_norm`. `padding_idx`, `scale_grad_by_freq` and `sparse` matter to gradients alone."""
    require_index(input, "embedding_fwd")
    if weight.ndim != 2:
        raise ShapeError(f"embedding_fwd: the weight is {dims_text(weight.shape)}, not two-dimensional")
    out = b.new((*input.shape, weight.shape[1]), weight.dtype)
    if max_norm is None:
        return b.emit(Aten(out, EMBEDDING, (input, weight)))
    norm = (max_norm, Const(2.0, DataType.Double) if norm_type is None else norm_type)
    return b.emit(Aten(out, RENORMED, (input, weight, *(cast(b, s, DataType.Double) for s in norm))))


def constant(scalar: Scalar | bool | int | float, what: str) -> bool | int | float:
    """The value of a scalar that must be known when the program is written."""
    if isinstance(scalar, bool | int | float):
        return scalar
    if not isinstance(scalar, Const):
        raise ShapeError(f"{what} must be a number")
    assert not isinstance(scalar.value, complex)
    return scalar.value


# ---- sorting --------------------------------------------------------------------------------------------------------------------------------------


def all_but(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Every dim follows, except the one named by the attribute `dim`, which must be whole."""
    gone = attribute(node, "dim")
    row = tuple(None if d == gone else d for d in range(node.out.ndim))
    return (row,) * len(operands(node)), row


def _topk(arg: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.topk(arg, k, dim, largest, sorted)
    return values, indices


TOPK = AtenOp("topk", _topk, all_but, results=2)


def topk(b: Builder, arg: Tensor, k: Size, dim: int = -1, largest: bool = True, sorted: bool = False) -> tuple[Tensor, Tensor]:
    """Values and indices of the k largest or smallest along a dim."""
    axis, count = wrap_dim(dim, arg.ndim, "topk"), as_size(b, k, "topk")
    size = arg.shape[axis]
    if isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise ShapeError(f"topk: k={count} of a dim of size {size}")
    inside = sizes.minimum(sizes.maximum(count, 0), size)
    b.require_equal(inside, count, f"topk: k={count} of a dim of size {size}")
    shape = tuple(count if d == axis else s for d, s in enumerate(arg.shape))
    attrs = (("k", count), ("dim", axis), ("largest", bool(constant(largest, "topk: largest"))), ("sorted", bool(constant(sorted, "topk: sorted"))))
    values = b.emit(Aten(b.new(shape, arg.dtype), TOPK, (arg,), attrs, 0))
    return values, b.emit(Aten(b.new(shape, DataType.Int), TOPK, (arg,), attrs, 1))


ARGSORT = AtenOp("argsort", lambda a, dim, descending, stable: torch.argsort(a, dim=dim, descending=descending, stable=stable), all_but)


def argsort(b: Builder, arg: Tensor, dim: int, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort along a dim; a 0-dim tensor counts as one element."""
    axis = wrap_dim(dim, max(arg.ndim, 1), "argsort")
    attrs = (("dim", axis), ("descending", bool(constant(descending, "argsort: descending"))), ("stable", bool(constant(stable, "argsort: stable"))))
    return b.emit(Aten(b.new(arg.shape, DataType.Int), ARGSORT, (arg,), attrs))


__all__: Sequence[str] = ("argsort", "embedding_fwd", "gather", "index_select", "scatter", "select", "take_along_axis", "topk")
