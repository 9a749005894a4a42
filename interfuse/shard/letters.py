"""Which dims follow which: every node as letters, einsum-like, and what partial values may pass through it.

A dim with a letter may be cut wherever all dims with that letter are cut alike; a dim without one must be whole. A letter that the result
lacks is reduced: cutting it makes the result partial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import assert_never

from interfuse.ir import sizes
from interfuse.ir.nodes import (
    AllGather,
    AllReduce,
    AllToAll,
    Aten,
    Broadcast,
    Cat,
    Contract,
    Full,
    Iota,
    Move,
    Node,
    Pad,
    Permute,
    Pointwise,
    Random,
    Reduce,
    ReduceScatter,
    Reshape,
    Slice,
    Tensor,
    operands,
)
from interfuse.ir.sizes import Size
from interfuse.ops.elementwise import CAST

Letters = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """`ins[k]` are the letters of tensor operand k, `out` the result's.

    `reduced` maps a letter that is reduced to its op. `passes` lists (operands, op): with exactly these operands partial, and the others whole,
    the result is partial with that op. `grains` gives, for (position, letter) with position -1 for the result, the grain in which the dim may
    be cut; 1 where absent.
    """

    ins: tuple[Letters, ...]
    out: Letters
    reduced: dict[int, str] = field(default_factory=dict)
    passes: tuple[tuple[frozenset[int], str | None], ...] = ()
    grains: dict[tuple[int, int], Size] = field(default_factory=dict)

    def all_letters(self) -> list[int]:
        """Letters in order of first appearance, operands first."""
        found: dict[int, None] = {}
        for row in (*self.ins, self.out):
            for letter in row:
                if letter is not None:
                    found[letter] = None
        return list(found)

    def dim_of(self, position: int, letter: int) -> int | None:
        """The dim of operand `position` (-1: the result) that carries the letter."""
        row = self.out if position < 0 else self.ins[position]
        return row.index(letter) if letter in row else None


_ANY = ((frozenset({0}), None),)


def rule(node: Node) -> Rule:
    """The letters of a node of a Traced or Placed program."""
    match node:
        case Pointwise():
            return _pointwise(node)
        case Reduce():
            ins = tuple(range(node.arg.ndim))
            out = tuple(d for d in ins if d not in node.dims)
            return Rule((ins,), out, {d: node.op.name for d in node.dims}, ((frozenset({0}), node.op.name),))
        case Contract():
            return _contract(node)
        case Broadcast():
            return _broadcast(node)
        case Permute():
            return Rule((tuple(range(node.arg.ndim)),), node.dims, passes=_ANY)
        case Reshape():
            return _reshape(node)
        case Slice():
            kept = tuple(d if node.arg.shape[d] == node.out.shape[d] else None for d in range(node.arg.ndim))
            return Rule((kept,), kept, passes=_ANY)
        case Pad():
            kept = tuple(d if node.arg.shape[d] == node.out.shape[d] else None for d in range(node.arg.ndim))
            return Rule((kept,), kept)
        case Cat():
            row = tuple(None if d == node.dim else d for d in range(node.out.ndim))
            return Rule((row,) * len(node.args), row)
        case Full() | Iota() | Random():
            return Rule((), tuple(range(node.out.ndim)))
        case Aten():
            return _aten(node)
        case Move() | AllGather() | ReduceScatter() | AllReduce() | AllToAll():
            raise TypeError(f"{type(node).__name__} has no letters: it is how placements change")
        case _:
            assert_never(node)


def _aten(node: Aten) -> Rule:
    ins, out = node.op.dims(node)
    summed = {letter: "sum" for row in ins for letter in row if letter is not None and letter not in out}
    return Rule(ins, out, summed, tuple((group, "sum") for group in node.op.linear_in))


def _pointwise(node: Pointwise) -> Rule:
    out = tuple(range(node.out.ndim))
    tensors = operands(node)
    ins = tuple(tuple(None if repeats(t.shape[d], node.out.shape[d]) else d for d in out) for t in _each(node))
    linear = node.op.linear_in if node.out.dtype.is_float or node.op is not CAST else ()
    if node.op is CAST and node.args and isinstance(node.args[0], Tensor):
        source = node.args[0].dtype
        widens = source.is_float == node.out.dtype.is_float and source.itemsize <= node.out.dtype.itemsize and source.value != "bool"
        linear = node.op.linear_in if widens else ()
    if node.op.name == "div" and not node.out.dtype.is_float:
        linear = ()
    positions = [i for i, a in enumerate(node.args) if isinstance(a, Tensor)]
    passes = tuple((frozenset(positions.index(i) for i in group), "sum") for group in linear if all(i in positions for i in group))
    assert len(tensors) == len(ins)
    return Rule(ins, out, passes=passes)


def repeats(size: Size, out: Size) -> bool:
    """Whether a dim is, or may turn out to be, of size 1 and repeated to `out`."""
    return size != out and (size == 1 or sizes.may_be_one(size) or sizes.may_be_one(out))


def _each(node: Pointwise) -> tuple[Tensor, ...]:
    return tuple(a for a in node.args if isinstance(a, Tensor))


def _contract(node: Contract) -> Rule:
    names: dict[str, int] = {}
    for letter in node.a_letters + node.b_letters + node.out_letters:
        names.setdefault(letter, len(names))

    def row(letters: str, tensor: Tensor) -> Letters:
        return tuple(None if letter.isupper() else names[letter] for letter in letters)

    gone = {names[c]: "sum" for c in node.a_letters + node.b_letters if c not in node.out_letters and not c.isupper()}
    return Rule(
        (row(node.a_letters, node.a), row(node.b_letters, node.b)),
        tuple(names[c] for c in node.out_letters),
        gone,
        ((frozenset({0}), "sum"), (frozenset({1}), "sum")),
    )


def _broadcast(node: Broadcast) -> Rule:
    ins: list[int | None] = []
    for i, d in enumerate(node.dims):
        ins.append(None if repeats(node.arg.shape[i], node.out.shape[d]) else d)
    return Rule((tuple(ins),), tuple(range(node.out.ndim)), passes=_ANY)


def reshape_groups(old: tuple[Size, ...], new: tuple[Size, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The finest pairs of neighbouring dims with equal products, in order; dims of size 1 join the group before them.

    >>> reshape_groups((6, 4), (3, 2, 4))
    [((0,), (0, 1)), ((1,), (2,))]
    """
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start_i, start_j = i, j
        left: Size = 1
        right: Size = 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if j < len(new) and _grow_right(left, right, i >= len(old)):
                right, j = sizes.mul(right, new[j]), j + 1
            elif i < len(old):
                left, i = sizes.mul(left, old[i]), i + 1
            elif j < len(new):
                right, j = sizes.mul(right, new[j]), j + 1
            else:
                break
        groups.append((tuple(range(start_i, i)), tuple(range(start_j, j))))
    return groups


def _grow_right(left: Size, right: Size, left_ended: bool) -> bool:
    if left_ended:
        return True
    if isinstance(left, int) and isinstance(right, int):
        return right < left
    return sizes.exact_quotient(left, right) is not None


def _reshape(node: Reshape) -> Rule:
    """The outermost dim of a group follows the group's outermost dim on the other side, in grains that both sides can hold."""
    old, new = node.arg.shape, node.out.shape
    ins: list[int | None] = [None] * len(old)
    out: list[int | None] = [None] * len(new)
    grains: dict[tuple[int, int], Size] = {}
    letter = 0
    for left, right in reshape_groups(old, new):
        real_left = [d for d in left if old[d] != 1] or list(left[:1])
        real_right = [d for d in right if new[d] != 1] or list(right[:1])
        if not real_left or not real_right:
            continue
        inner_left = sizes.product(old[d] for d in real_left[1:])
        inner_right = sizes.product(new[d] for d in real_right[1:])
        unit = _common_unit(inner_left, inner_right)
        if unit is None:
            continue
        ins[real_left[0]], out[real_right[0]] = letter, letter
        grains[0, letter] = sizes.floordiv(unit, inner_left)
        grains[-1, letter] = sizes.floordiv(unit, inner_right)
        letter += 1
    return Rule((tuple(ins),), tuple(out), passes=_ANY, grains={k: g for k, g in grains.items() if g != 1})


def _common_unit(a: Size, b: Size) -> Size | None:
    """The smaller multiple of both that is certain: one divides the other, or both are numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return math.lcm(a, b) if a and b else None
    if sizes.exact_quotient(a, b) is not None:
        return a
    return b if sizes.exact_quotient(b, a) is not None else None
