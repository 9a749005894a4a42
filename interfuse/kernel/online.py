"""Pairs of reductions that one pass can find, where the second needs the first's result: max and sum of exponentials, sum and squared differences.

Found by shape in the nodes, for rows that are too long for registers. Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax"
(2018); Welford (1962) with Chan's rule for joining lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Broadcast, Const, Node, Operand, Permute, Pointwise, Reduce, Reshape, Scalar, ScalarCompute, SizeScalar, Tensor
from interfuse.kernel.blocks import CloseMoments, CloseSoftmax, OnlineMoments, OnlineSoftmax
from interfuse.kernel.nodes import Value
from interfuse.kernel.space import Space


@dataclass(frozen=True, slots=True)
class Softmax:
    top: str
    total: str

    def step(self, value: Value, axis: int, rank: int, spans: tuple[str, ...]) -> OnlineSoftmax:
        return OnlineSoftmax(self.top, self.total, value, axis, rank, spans)

    def close(self, first: str, second: str, axis: int, rank: int) -> CloseSoftmax:
        return CloseSoftmax(self.top, self.total, first, second, axis, rank)


@dataclass(frozen=True, slots=True)
class Moments:
    mean: str
    squares: str
    count: str

    def step(self, value: Value, axis: int, rank: int, spans: tuple[str, ...]) -> OnlineMoments:
        return OnlineMoments(self.mean, self.squares, self.count, value, spans)

    def close(self, first: str, second: str, axis: int, rank: int) -> CloseMoments:
        return CloseMoments(self.mean, self.squares, self.count, first, second, axis, rank)


@dataclass(frozen=True, slots=True, eq=False)
class Online:
    """Two reductions and the value that both read. `kind`: softmax or moments."""

    kind: str
    first: Reduce
    second: Reduce
    source: Tensor

    @property
    def prefixes(self) -> tuple[str, ...]:
        return ("top", "total") if self.kind == "softmax" else ("mean", "squares", "count")

    @property
    def starts(self) -> tuple[float, ...]:
        return (float("-inf"), 0.0) if self.kind == "softmax" else (0.0, 0.0, 0.0)

    def state(self, names: Sequence[str]) -> Softmax | Moments:
        return Softmax(*names) if self.kind == "softmax" else Moments(*names)


def find_online(space: Space) -> list[Online]:
    """The pairs of a kernel; no reduction is in two of them."""
    producers = {n.out: n for n in space.nodes}
    found: list[Online] = []
    taken: set[Reduce] = set()
    for second in space.reduces:
        if second.op.name != "sum" or second.out.dtype.compute is not DataType.Float:
            continue
        for first in space.reduces:
            if first is second or {first, second} & taken or space.reduces[first][1] != space.reduces[second][1]:
                continue
            source = _softmax(first, second, producers) or _moments(first, second, producers)
            if source is not None and first.out.dtype.compute is DataType.Float:
                found.append(Online("softmax" if first.op.name == "max" else "moments", first, second, source))
                taken |= {first, second}
    return found


def _softmax(first: Reduce, second: Reduce, producers: dict[Tensor, Node]) -> Tensor | None:
    """sum(exp(x − max x)): x."""
    node = producers.get(_exact(second.arg, producers))
    if first.op.name != "max" or not (isinstance(node, Pointwise) and node.op.name == "exp"):
        return None
    return _difference(node.args[0], first, producers, first.out, None)


def _moments(first: Reduce, second: Reduce, producers: dict[Tensor, Node]) -> Tensor | None:
    """sum((x − mean x)²): x."""
    node = producers.get(_exact(second.arg, producers))
    if first.op.name != "sum" or not isinstance(node, Pointwise):
        return None
    is_square = (node.op.name == "mul" and node.args[0] is node.args[1]) or (
        node.op.name == "pow" and isinstance(node.args[1], Const) and node.args[1].value == 2
    )
    count = sizes.product(first.arg.shape[d] for d in first.dims)
    return _difference(node.args[0], first, producers, first.out, count) if is_square else None


def _difference(operand: Operand, first: Reduce, producers: dict[Tensor, Node], result: Tensor, count: sizes.Size | None) -> Tensor | None:
    """x where `operand` is x − result (divided by `count`, if there is one), and x is what `first` reduces."""
    if not isinstance(operand, Tensor):
        return None
    node = producers.get(_exact(operand, producers))
    if not (isinstance(node, Pointwise) and node.op.name == "sub"):
        return None
    left, right = node.args
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)) or left.shape != node.out.shape or left.shape != first.arg.shape:
        return None
    found = _seen_through(right, producers)
    if count is not None:
        mean = producers.get(found)
        if not (isinstance(mean, Pointwise) and mean.op.name == "div" and isinstance(mean.args[0], Tensor) and _is_count(mean.args[1], count)):
            return None
        found = _seen_through(mean.args[0], producers)
    return left if found is result and _exact(left, producers) is _exact(first.arg, producers) else None


def _is_count(operand: Operand, count: sizes.Size) -> bool:
    scalar: Scalar | None = operand if not isinstance(operand, Tensor) else None
    while isinstance(scalar, ScalarCompute) and scalar.op.name in ("cast", "set"):
        scalar = scalar.args[0]
    return isinstance(scalar, (Const, SizeScalar)) and scalar.value == count


def _exact(tensor: Tensor, producers: dict[Tensor, Node]) -> Tensor:
    """The tensor before copies and casts that lose nothing."""
    while isinstance(node := producers.get(tensor), Pointwise) and node.op.name in ("cast", "set") and isinstance(node.args[0], Tensor):
        source = node.args[0]
        if source.dtype is not tensor.dtype and not (source.dtype.is_low_precision and tensor.dtype is DataType.Float):
            return tensor
        tensor = source
    return tensor


def _seen_through(tensor: Tensor, producers: dict[Tensor, Node]) -> Tensor:
    """The tensor before views, copies and casts that lose nothing."""
    while True:
        tensor = _exact(tensor, producers)
        node = producers.get(tensor)
        if not isinstance(node, (Broadcast, Reshape, Permute)):
            return tensor
        tensor = node.arg
