"""How an input lies in memory, as nvFuser describes it: contiguity per dim in the order of memory, and that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex

from interfuse.errors import ArgumentTypeError, ShapeError

_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Layout:
    """A declared layout. `contiguity` runs from the slowest dim of memory to the fastest: True if the dim is dense over the next, None for a dim
    that broadcasts. `stride_order[d]` is the rank of dim d, 0 the fastest; empty: row-major."""

    contiguity: tuple[bool | None, ...]
    stride_order: tuple[int, ...] = ()
    is_cpu: bool = False


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Raises ArgumentTypeError for what is no 64-bit int, ShapeError for what is no size; -1 stands for a size that is known when called."""
    checked = []
    for i, given in enumerate(shape):
        size = None if isinstance(given, bool) or not isinstance(given, SupportsIndex) else index(given)
        if size is None or not -_INT64 <= size < _INT64:
            raise ArgumentTypeError(f"define_tensor: a size is a 64-bit int, not {given!r}")
        if size < -1:
            raise ShapeError(
                f"define_tensor: the value {size} at index {i} was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1); "
                f"-1 stands for a size that is known when called"
            )
        checked.append(size)
    return tuple(checked)


def layout_of(
    shape: tuple[int, ...], contiguity: Sequence[bool | None] | bool | None, stride_order: Sequence[int] = (), is_cpu: bool = False
) -> Layout:
    """A declared layout, checked. One flag stands for all dims that do not broadcast. Raises ArgumentTypeError, ShapeError."""
    order = _checked_order(shape, stride_order)
    if isinstance(contiguity, bool):
        by_memory = sorted(range(len(shape)), key=lambda d: -order[d]) if order else range(len(shape))
        return Layout(tuple(None if shape[d] == 1 else contiguity for d in by_memory), order, is_cpu)
    flags = tuple(contiguity or ())
    if not all(flag is None or isinstance(flag, bool) for flag in flags):
        raise ArgumentTypeError(f"define_tensor: contiguity is a bool, or a bool or None per dim, not {list(flags)}")
    if len(flags) != len(shape):
        raise ShapeError(f"define_tensor: {len(flags)} contiguity flags for {len(shape)} dims")
    return Layout(flags, order, is_cpu)


def _checked_order(shape: tuple[int, ...], stride_order: Sequence[int]) -> tuple[int, ...]:
    """The order with its entries counted from the front; () if it is row-major."""
    if not stride_order:
        return ()
    ndim = len(shape)
    if not all(isinstance(d, int) and -ndim <= d < ndim for d in stride_order):
        raise ShapeError(f"define_tensor: stride_order {list(stride_order)} of {ndim} dims: its entries run from {-ndim} to {ndim - 1}")
    order = tuple(d % ndim for d in stride_order)
    if sorted(order) != list(range(ndim)):
        raise ShapeError(f"define_tensor: stride_order {list(stride_order)} is not a permutation of {ndim} dims")
    return () if order == tuple(reversed(range(ndim))) else order


def compute_tensor_descriptor(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[bool | None], list[int]]:
    """(contiguity in the order of memory, stride_order) of a tensor with these sizes and strides, in elements. Raises ShapeError.

    >>> compute_tensor_descriptor([2, 3, 1, 5, 4], [28, 4, 14, 0, 1])
    ([False, None, True, None, True], [4, 2, 3, 1, 0])
    """
    if len(sizes) != len(strides):
        raise ShapeError(f"{len(sizes)} sizes, but {len(strides)} strides")
    if any(s < 0 for s in strides):
        raise ShapeError(f"strides {list(strides)} are negative")
    moving = iter(sorted((d for d in range(len(sizes)) if strides[d]), key=lambda d: -strides[d]))
    by_memory = [next(moving) if strides[d] else d for d in range(len(sizes))]
    contiguity: list[bool | None] = []
    dense = 1
    for d in reversed(by_memory):
        if not strides[d] or sizes[d] == 1:
            contiguity.append(None)
            continue
        contiguity.append(strides[d] == dense)
        dense = strides[d] * sizes[d]
    order = [0] * len(sizes)
    for rank, d in enumerate(reversed(by_memory)):
        order[d] = rank
    return contiguity[::-1], order
