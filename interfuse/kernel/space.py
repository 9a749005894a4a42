"""Which loops a kernel has, and at which index every tensor is needed: the analysis behind `refuse` and `tile`.

A value is a function of an index vector. Outputs are wanted at plain loop variables, one per dim; walking the nodes backwards turns that into
the indices at which every other tensor is wanted: views rewrite an index, `Pad` and `Cat` add conditions, a reduction adds its loops. All
reductions of a kernel run over the same loops under the same kept loops, so a kernel is one nest: kept loops outside, and inside them passes
over the reduced loops, one per level of reductions that need one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from interfuse.ir import sizes
from interfuse.ir.nodes import Broadcast, Cat, Full, Iota, Node, Pad, Permute, Pointwise, Reduce, Reshape, Slice, Tensor, operands
from interfuse.ir.sizes import Size
from interfuse.kernel.affine import flatten, reshape_groups, unflatten
from interfuse.kernel.nodes import Mask, Within

Index = tuple[Size, ...]
Point = tuple[Tensor, Index, Mask]  # a tensor, where it is read, and under which conditions that index exists


class Refused(Exception):
    """The nodes do not fit one template; the message is one sentence."""


@dataclass
class SizeTable:
    """Sizes as arguments `n0, n1, …` in order of first use. A merged dim is the product of its parts, so that strides can be compared."""

    products: dict[Size, tuple[Size, ...]] = field(default_factory=dict)
    names: dict[Size, Size] = field(default_factory=dict)

    def __call__(self, size: Size) -> Size:
        """A dim's size, an offset or a bound inside the kernel: 1 stays, all else is an argument or a product of arguments."""
        if size == 1:
            return 1
        if size not in self.names:
            if size in self.products:
                self.names[size] = sizes.product(self(part) for part in self.products[size])
            else:
                self.names[size] = sizes.symbol(f"n{sum(1 for s in self.names if s not in self.products)}")
        return self.names[size]

    def offset(self, value: Size) -> Size:
        """A start or a padding, where 0 is worth folding as well."""
        return 0 if value == 0 else self(value)

    def arguments(self) -> tuple[Size, ...]:
        return tuple(size for size in self.names if size not in self.products)

    def learn(self, node: Reshape) -> None:
        """Notes which sizes are products of others."""
        for new, old in reshape_groups(node.out.shape, node.arg.shape):
            for one, many, whole, cut in ((new, old, node.out, node.arg), (old, new, node.arg, node.out)):
                if len(one) == 1 and len(many) > 1:
                    factors = tuple(cut.shape[d] for d in many)
                    size = whole.shape[one[0]]
                    if size not in factors and not any(size in self._factors(f) for f in factors) and _is_product(size, factors):
                        self.products.setdefault(size, factors)

    def _factors(self, size: Size) -> set[Size]:
        found = {size}
        for part in self.products.get(size, ()):
            found |= self._factors(part)
        return found


def _is_product(size: Size, factors: Sequence[Size]) -> bool:
    """A size that is 0, or that only the user's word makes equal, stays an argument of its own."""
    return size != 0 and sizes.product(factors) == size


def is_unit(size: Size) -> bool:
    return isinstance(size, int) and size == 1


def is_trivial(node: Reduce) -> bool:
    """A reduction over dims of size 1 only, which is a change of shape and type."""
    return all(is_unit(node.arg.shape[d]) for d in node.dims)


@dataclass
class Space:
    """The loops and what is wanted where.

    `extents`: loop → extent. `kept`, `reduced`: loop names, outer to inner. `roots`: each output with the tensor whose memory it is and the
    index at which it is stored. `reduces`: reduction → (index of its result, index of its operand). `level`: how many reductions deep.
    """

    nodes: tuple[Node, ...]
    size: SizeTable
    extents: dict[str, Size] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    reduced: list[str] = field(default_factory=list)
    roots: list[tuple[Tensor, Tensor, Index]] = field(default_factory=list)
    reduces: dict[Reduce, tuple[Index, Index]] = field(default_factory=dict)
    level: dict[Tensor, int] = field(default_factory=dict)
    cost: int = 0

    @property
    def has_full_output(self) -> bool:
        """Whether an output runs over the reduced loops as well."""
        return any(is_full(index, self.reduced) for _, _, index in self.roots)

    @property
    def levels(self) -> int:
        return max((self.level[r.out] for r in self.reduces), default=0)

    def shape(self, tensor: Tensor) -> tuple[Size, ...]:
        return tuple(self.size(n) for n in tensor.shape)


def is_full(index: Index, reduced: Sequence[str]) -> bool:
    used = loops_of(index)
    return bool(reduced) and any(r in used for r in reduced)


def loops_of(index: Iterable[Size]) -> set[str]:
    found: set[str] = set()
    for i in index:
        found |= sizes.symbols(i)
    return found


# ---- views as rewrites of an index -----------------------------------------------------------------------------------------------------------


def reads(node: Node, index: Index, mask: Mask, space: Space) -> list[Point]:
    """What a node reads to give its element at `index`, in operand order."""
    match node:
        case Pointwise():
            return [(a, tuple(0 if is_unit(n) else i for n, i in zip(a.shape, index, strict=True)), mask) for a in operands(node)]
        case Reduce():
            rest = iter(index)
            return [(node.arg, tuple(0 if d in node.dims else next(rest) for d in range(node.arg.ndim)), mask)]
        case Broadcast():
            return [(node.arg, tuple(0 if is_unit(n) else index[d] for n, d in zip(node.arg.shape, node.dims, strict=True)), mask)]
        case Permute():
            return [(node.arg, tuple(index[node.dims.index(d)] for d in range(node.arg.ndim)), mask)]
        case Slice():
            return [(node.arg, tuple(sizes.add(i, space.size.offset(s)) for i, s in zip(index, node.starts, strict=True)), mask)]
        case Pad():
            inside, within = padded(node, index, space)
            return [(node.arg, inside, merged(mask, within))]
        case Cat():
            return [(a, i, merged(mask, within)) for a, i, within in pieces(node, index, space)]
        case Reshape():
            return [(node.arg, reshaped(node, index, space), mask)]
        case _:
            return []


def merged(mask: Mask, more: Mask) -> Mask:
    return mask + tuple(w for w in more if w not in mask)


def padded(node: Pad, index: Index, space: Space) -> tuple[Index, Mask]:
    """The operand's index, and the conditions under which it exists."""
    inside, within = [], []
    for i, before, old, new in zip(index, node.before, node.arg.shape, node.out.shape, strict=True):
        shifted = sizes.sub(i, space.size.offset(before))
        if before != 0 or old != new:
            within.append(Within(shifted, space.size(old)))
        inside.append(0 if is_unit(old) else shifted)
    return tuple(inside), tuple(within)


def pieces(node: Cat, index: Index, space: Space) -> list[tuple[Tensor, Index, Mask]]:
    """Every operand with its own index and the condition under which the element is its."""
    found: list[tuple[Tensor, Index, Mask]] = []
    offset: Size = 0
    for arg in node.args:
        at = sizes.sub(index[node.dim], offset)
        length = space.size(arg.shape[node.dim])
        local = 0 if is_unit(arg.shape[node.dim]) else at
        found.append((arg, (*index[: node.dim], local, *index[node.dim + 1 :]), (Within(at, length),)))
        offset = sizes.add(offset, length)
    return found


def reshaped(node: Reshape, index: Index, space: Space) -> Index:
    """Groups of dims are merged to a position and cut again; a group of one dim each keeps its index."""
    result: list[Size] = [0] * node.arg.ndim
    new_shape, old_shape = space.shape(node.out), space.shape(node.arg)
    for new, old in reshape_groups(node.out.shape, node.arg.shape):
        flat = flatten([index[d] for d in new], [new_shape[d] for d in new])
        for d, i in zip(old, unflatten(flat, [old_shape[d] for d in old], space.extents), strict=True):
            result[d] = i
    return tuple(result)


# ---- the analysis ---------------------------------------------------------------------------------------------------------------------------


def analyse(nodes: Sequence[Node], outputs: Sequence[Tensor]) -> Space:
    """The loops of one kernel for these nodes; raises `Refused` where there are none."""
    if not outputs:
        raise Refused("a kernel without outputs computes nothing")
    producers = {n.out: n for n in nodes}
    for node in nodes:
        if not isinstance(node, KERNEL_NODES):
            raise Refused(f"{type(node).__name__} of {node.out.name} is not a kernel's work")
    reason: Refused | None = None
    for stored in dict.fromkeys((tuple(_stored(t, producers) for t in outputs), tuple(outputs))):
        try:
            return _analyse_stored(tuple(nodes), tuple(outputs), stored)
        except Refused as refused:
            reason = reason or refused
    assert reason is not None
    raise reason


def _stored(tensor: Tensor, producers: dict[Tensor, Node]) -> Tensor:
    """The tensor before trailing reshapes: the same memory, under the dims in which it is computed."""
    while isinstance(node := producers.get(tensor), Reshape):
        tensor = node.arg
    return tensor


def _analyse_stored(nodes: tuple[Node, ...], outputs: tuple[Tensor, ...], stored: tuple[Tensor, ...]) -> Space:
    """The largest output names the loops; the others are stored inside them, wherever that needs the fewest elements."""
    table = SizeTable()
    for node in nodes:
        if isinstance(node, Reshape):
            table.learn(node)
    main = max(range(len(stored)), key=lambda k: (sum(not is_unit(n) for n in stored[k].shape), -k))
    loops = {f"i{d}": table(n) for d, n in enumerate(stored[main].shape) if not is_unit(n)}
    index = tuple(sizes.symbol(f"i{d}") if f"i{d}" in loops else 0 for d in range(stored[main].ndim))
    roots: list[tuple[Tensor, Tensor, Index]] = []
    for k in [main, *(k for k in range(len(stored)) if k != main)]:
        choices = [index] if k == main else list(_choices(stored[k], loops, table))
        best, reason = None, None
        for choice in choices:
            try:
                space = _wanted(nodes, table, dict(loops), [*roots, (outputs[k], stored[k], choice)])
            except Refused as refused:
                reason = reason or refused
                continue
            if best is None or space.cost < best.cost:
                best = space
        if best is None:
            raise reason or Refused(f"output {outputs[k]!r} does not run over the loops of {outputs[main]!r}")
        roots = best.roots
    assert best is not None
    best.roots.sort(key=lambda root: next(k for k, t in enumerate(outputs) if t is root[0]))
    _check_outputs(best)
    return best


KERNEL_NODES = (Pointwise, Reduce, Broadcast, Reshape, Permute, Slice, Pad, Cat, Full, Iota)


def _choices(tensor: Tensor, loops: dict[str, Size], table: SizeTable) -> Iterable[Index]:
    """Ways to run a further output over loops of equal extents, in the loops' order first; at most 24."""
    dims = [d for d, n in enumerate(tensor.shape) if not is_unit(n)]
    extents = [table(tensor.shape[d]) for d in dims]
    count = 0
    for names in _assignments(extents, list(loops.items())):
        index: list[Size] = [0] * tensor.ndim
        for d, name in zip(dims, names, strict=True):
            index[d] = sizes.symbol(name)
        yield tuple(index)
        count += 1
        if count == 24:
            return


def _assignments(extents: Sequence[Size], loops: list[tuple[str, Size]]) -> Iterable[tuple[str, ...]]:
    if not extents:
        yield ()
        return
    for position, (name, extent) in enumerate(loops):
        if extent == extents[0]:
            for rest in _assignments(extents[1:], loops[:position] + loops[position + 1 :]):
                yield (name, *rest)


def _wanted(nodes: tuple[Node, ...], table: SizeTable, loops: dict[str, Size], roots: list[tuple[Tensor, Tensor, Index]]) -> Space:
    """Walks backwards from the roots through all reductions, and fixes kept and reduced loops at the first one met."""
    space = Space(nodes, table, loops, roots=list(roots))
    wanted: dict[Tensor, dict[tuple[Index, Mask], None]] = {}
    for _, tensor, index in roots:
        wanted.setdefault(tensor, {})[index, ()] = None
    for node in reversed(nodes):
        points = wanted.get(node.out)
        if not points:
            continue
        if isinstance(node, Reduce) and not is_trivial(node):
            following = [_reduction(node, list(points), space)]
        else:
            following = [p for index, mask in points for p in reads(node, index, mask, space)]
        for tensor, index, mask in following:
            wanted.setdefault(tensor, {})[index, mask] = None
    if not space.kept:
        space.kept = [name for name in space.extents if name not in space.reduced]
    space.cost = sum(len(points) for points in wanted.values())
    for node in nodes:
        below = max((space.level.get(t, 0) for t in operands(node)), default=0)
        space.level[node.out] = below + (node in space.reduces)
    return space


def _reduction(node: Reduce, points: list[tuple[Index, Mask]], space: Space) -> Point:
    """Checks that a reduction is wanted at one plain index of the kept loops, and gives its operand's index."""
    (index, mask), name = points[0], node.out.name
    if len(points) > 1:
        raise Refused(f"{node.op.name} {name} is needed at {len(points)} different indices, and a kernel keeps only one row's result")
    if mask:
        raise Refused(f"{node.op.name} {name} is padded or concatenated after it is reduced")
    plain = [sizes.to_text(i) for i in index if i != 0]
    if any(p not in space.extents for p in plain) or len(set(plain)) != len(plain):
        raise Refused(f"{node.op.name} {name} is sliced, merged or cut after it is reduced")
    if not space.reduces:
        _fix_loops(node, set(plain), space)
    elif set(plain) != set(space.kept):
        first = next(iter(space.reduces))
        raise Refused(f"{node.op.name} {name} and {first.op.name} {first.out.name} keep different dims")
    dims = [d for d in node.dims if not is_unit(node.arg.shape[d])]
    names = _match(node, [space.size(node.arg.shape[d]) for d in dims], space)
    chosen = dict(zip(dims, names, strict=True))
    kept = iter(index)
    operand = tuple((sizes.symbol(chosen[d]) if d in chosen else 0) if d in node.dims else next(kept) for d in range(node.arg.ndim))
    space.reduces[node] = (index, operand)
    return node.arg, operand, ()


def _fix_loops(node: Reduce, kept: set[str], space: Space) -> None:
    """The first reduction decides: loops of the outputs that its result lacks are the reduced ones, or there are new ones."""
    space.kept = [name for name in space.extents if name in kept]
    space.reduced = [name for name in space.extents if name not in kept]
    if not space.reduced:
        for d in sorted(node.dims):
            if not is_unit(node.arg.shape[d]):
                space.extents[f"r{d}"] = space.size(node.arg.shape[d])
                space.reduced.append(f"r{d}")


def _match(node: Reduce, extents: list[Size], space: Space) -> tuple[str, ...]:
    """Any pairing of reduced dims with loops of the same extents is right; the first in order shares the most loads."""
    loops = [(name, space.extents[name]) for name in space.reduced]
    if len(loops) == len(extents) and Counter(map(str, extents)) == Counter(str(e) for _, e in loops):
        return next(iter(_assignments(extents, loops)))
    mine = "×".join(str(node.arg.shape[d]) for d in node.dims)
    other = next((r for r in space.reduces), None)
    if other is None:
        raise Refused(f"{node.op.name} {node.out.name} reduces {mine}, and an output runs over other dims beside the kept ones")
    theirs = "×".join(str(other.arg.shape[d]) for d in other.dims)
    raise Refused(f"{node.op.name} {node.out.name} reduces {mine}, {other.op.name} {other.out.name} reduces {theirs}")


def _check_outputs(space: Space) -> None:
    """Every output runs over the kept loops, or over all of them."""
    every = set(space.extents)
    for output, _, index in space.roots:
        used = loops_of(index)
        if used != every and not (space.reduced and used == set(space.kept)):
            other = next(o for o, _, i in space.roots if loops_of(i) != used) if len(space.roots) > 1 else output
            raise Refused(f"output {output!r} runs over other dims than {other!r}")
