"""Writing one launch over blocks: spans, passes over the reduced loops, accumulators, parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from interfuse.ir import sizes
from interfuse.ir.nodes import Reduce, Tensor, operands
from interfuse.ir.sizes import Expr, Size
from interfuse.kernel.affine import flatten, unflatten
from interfuse.kernel.blocks import Accumulate, BlockLaunch, Collapse, For, Lanes, Span
from interfuse.kernel.builder import Builder
from interfuse.kernel.nodes import Buffer, Load, Ref, Store, Value, parts
from interfuse.kernel.online import Moments, Online, Softmax, find_online
from interfuse.kernel.reduction import lane_loop
from interfuse.kernel.schedule import ReduceTile, inner_tile, outer_tile
from interfuse.kernel.space import Space, is_full
from interfuse.kernel.target import Target

MOST_INDEX = 2**31 - 2**20  # elements that 32-bit indices reach, with room for a block beyond the end


class Launching:
    """One launch while it is written: a builder, what is known of its extents, and the spans that are open."""

    def __init__(self, name: str, space: Space, inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target) -> None:
        self.name, self.space, self.target = name, space, target
        self.build = Builder(space, inputs, outputs)
        self.ragged: set[str] = set()

    def length(self, *loops: str) -> int | None:
        """The product of extents, where it is known."""
        size = self.build.known(self.build.total(loops))
        return size if isinstance(size, int) else None

    def flat(self, name: str, loops: Sequence[str]) -> str:
        """The name of an index that runs over all of `loops`: the loop's own where there is one."""
        return loops[0] if len(loops) == 1 else name

    def decode(self, flat: str, loops: Sequence[str]) -> None:
        """Names the loops' indices, cut out of the flat one."""
        if len(loops) > 1:
            extents = [self.build.extent[n] for n in loops]
            for name, value in zip(loops, unflatten(sizes.symbol(flat), extents, {flat: sizes.product(extents)}), strict=True):
                self.build.index(name, value)

    def span(self, var: str, first: Size, length: int, end: Size, axis: int, rank: int) -> None:
        """A block of indices in the present scope."""
        known = self.build.known(end)
        ragged = not (isinstance(known, int) and known % length == 0 and known > 0)
        self.build.depth[var] = len(self.build.scopes) - 1
        self.build.emit(Span(var, first, length, end, axis, rank, ragged))
        if ragged:
            self.ragged.add(var)

    def masked(self, *names: str) -> tuple[str, ...]:
        return tuple(n for n in names if n in self.ragged)

    def done(self, template: str, body: Sequence[Any], grid: Size, warps: int) -> BlockLaunch:
        """The launch, with the buffers that its body reads or writes."""
        build = self.build
        body = [*build.scopes[0].body, *body]  # what depends on no loop stands before all
        used = set(_buffers(body))
        named = [(t, name, False) for t, name in build.inputs.items()] + [(t, name, True) for t, name in build.outputs.items()]
        named = [(t, name, is_output) for t, name, is_output in named if name in used]
        buffers = tuple(Buffer(name, t.dtype, is_output) for t, name, is_output in named)
        tensors = tuple(t for t, _, _ in named)
        wide = any(not _is_small(t) for t in tensors)
        extents = (build.extent[n] for n in [*build.kept, *build.reduced])
        products = tuple(dict.fromkeys(e for e in extents if isinstance(e, Expr) and len(e.terms) == 1 and len(e.terms[0][0]) > 1))
        arguments = self.space.size.arguments()
        return BlockLaunch(self.name, template, buffers, tensors, tuple(build.scalars), arguments, grid, warps, wide, products, tuple(body))


def _is_small(tensor: Tensor) -> bool:
    count = sizes.product(tensor.shape)
    return isinstance(count, int) and count < MOST_INDEX


def _buffers(body: Iterable[Any]) -> Iterable[str]:
    for statement in body:
        if isinstance(statement, For):
            yield from _buffers(statement.body)
        if isinstance(statement, Store):
            yield statement.buffer
        if (value := getattr(statement, "value", None)) is not None and not isinstance(value, (bool, int, float)):
            yield from _loaded(value)


def _loaded(value: Value) -> Iterable[str]:
    if isinstance(value, Load):
        yield value.buffer
    for part in parts(value):
        yield from _loaded(part)


class Nest:
    """A launch with reductions. Rows lie along axis `reduced_axis` of the tile; `lane` is the loop that memory runs along."""

    def __init__(self, launching: Launching, finishing: bool = False) -> None:
        self.launching, self.build, self.space = launching, launching.build, launching.space
        build = self.build
        self.lane = lane_loop(build) if build.reduced else (build.kept or [""])[-1]
        self.is_inner = self.lane in build.reduced or not build.kept
        self.reduces = [n for n in self.space.nodes if isinstance(n, Reduce) and n in self.space.reduces]
        self.row_length, self.row_count = launching.length(*build.reduced), launching.length(*build.kept)
        self.online: list[Online] = find_online(self.space)
        self.level = self._levels()
        self.tile = self._tile(finishing)
        if self.tile.whole or self.cut_into > 1:
            self.online = []
            self.level = self._levels()

    @property
    def cut_into(self) -> int:
        return self.tile.parts

    def _tile(self, finishing: bool) -> ReduceTile:
        launching, build = self.launching, self.build
        full = [t for t, _, index in self.space.roots if is_full(index, self.space.reduced)]
        may_cut = not finishing and self.space.levels == 1 and all(self.space.level[t] == 0 for t in full)
        if self.is_inner:
            reads = sum(1 for load in build.loads if self._is_full_load(load))
            once = max(self.level.values(), default=0) == 1 and all(self.level.get(s, 0) == 0 for t, s, _ in self.space.roots if t in full)
            return inner_tile(launching, self.row_length, self.row_count, reads, may_cut=may_cut, once=once)
        others = launching.length(*(n for n in build.kept if n != self.lane))
        columns = launching.length(self.lane)
        return outer_tile(launching, self.row_length, columns, others or 1, may_cut=may_cut, finishing=finishing, stores=bool(full))

    def _is_full_load(self, load: Load) -> bool:
        used = sizes.symbols(self.build.at(load.index))
        return all(n in used for n in self.build.reduced)

    def _levels(self) -> dict[Tensor, int]:
        """How many passes must be over before a tensor can be computed; a pair that is found online takes one."""
        first = {o.second: o.first for o in self.online}
        level: dict[Tensor, int] = {}
        for node in self.space.nodes:
            if isinstance(node, Reduce) and node in first:
                level[node.out] = level[first[node].out]
            else:
                level[node.out] = max((level.get(t, 0) for t in operands(node)), default=0) + (node in self.space.reduces)
        return level

    # ---- geometry ---------------------------------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return 2 if self.tile.kept > 1 or not self.is_inner else 1

    @property
    def reduced_axis(self) -> int:
        return self.rank - 1 if self.is_inner else 0

    @property
    def shape(self) -> tuple[int, ...]:
        if self.rank == 1:
            return (self.tile.reduced,)
        return (self.tile.kept, self.tile.reduced) if self.is_inner else (self.tile.reduced, self.tile.kept)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The tile after its reduced axis is collapsed."""
        return () if self.rank == 1 else tuple(1 if axis == self.reduced_axis else n for axis, n in enumerate(self.shape))

    def _open_grid(self) -> Size:
        """Enters the grid: kept loops, then parts; gives the number of programs."""
        build, tile = self.build, self.tile
        parts_of = [("s", tile.parts, 1)] if tile.parts > 1 else []
        if not self.is_inner:
            others = [n for n in build.kept if n != self.lane]
            _, grid = build.open_grid(others, [(self.lane + "b", build.extent[self.lane], tile.kept), *parts_of])
            self.launching.span(self.lane, sizes.symbol(self.lane + "b"), tile.kept, build.extent[self.lane], 1, 2)
            self.kept_span = self.lane
        elif tile.kept > 1:
            self.kept_span = self.launching.flat("i", build.kept)
            _, grid = build.open_grid([], [(self.kept_span + "b", build.total(build.kept), tile.kept), *parts_of])
            self._rows(sizes.symbol(self.kept_span + "b"))
        else:
            self.kept_span = ""
            _, grid = build.open_grid(build.kept, parts_of)
        return grid

    def _rows(self, first: Size) -> None:
        """A block of rows."""
        self.launching.span(self.kept_span, first, self.tile.kept, self.build.total(self.build.kept), 0, 2)
        self.launching.decode(self.kept_span, self.build.kept)

    def _span(self, first: Size) -> None:
        """A block of a row."""
        name = self.row_index
        self.launching.span(name, first, self.tile.reduced, self.build.total(self.build.reduced), self.reduced_axis, self.rank)
        self.launching.decode(name, self.build.reduced)

    @property
    def row_index(self) -> str:
        return self.launching.flat("j", self.build.reduced)

    def _masked(self) -> tuple[str, ...]:
        return self.launching.masked(self.row_index)

    # ---- roots ------------------------------------------------------------------------------------------------------------------------------

    def _full(self, level: int) -> list[tuple]:
        full = [r for r in self.space.roots if self._stored_here(r) and is_full(r[2], self.space.reduced)]
        return [r for r in full if self.level.get(r[1], 0) == level]

    def _row_roots(self, level: int | None = None) -> list[tuple]:
        rows = [r for r in self.space.roots if self._stored_here(r) and not is_full(r[2], self.space.reduced)]
        return [r for r in rows if level is None or self.level.get(r[1], 0) == level]

    def _stored_here(self, root: tuple) -> bool:
        return root[0] in self.build.outputs

    def _operands(self, reduces: Sequence[Reduce]) -> list[Value]:
        found = self.build.values([(r.arg, self.space.reduces[r][1]) for r in reduces])
        return [self.build.convert(v, r.out.dtype.compute) for v, r in zip(found, reduces, strict=True)]

    def _result(self, reduce: Reduce) -> str:
        name = self.build.fresh("sum" if reduce.op.name == "sum" else "red")
        self.build.depth[name] = len(self.build.scopes) - 1
        self.build.results[reduce.out] = Ref(name, reduce.out.dtype.compute)
        return name

    def _collapse(self, reduce: Reduce, value: Value, masked: tuple[str, ...]) -> None:
        held = reduce.out.dtype.compute
        name = self._result(reduce)
        self.build.emit(Collapse(name, reduce.op, value, self.reduced_axis, self.shape, masked, held))

    # ---- whole rows -------------------------------------------------------------------------------------------------------------------------

    def _template(self) -> str:
        return "normalization" if max(self.level.values(), default=0) > 1 or self._full(0) or self._full(1) else "reduction"

    def whole(self) -> BlockLaunch:
        """One launch that does everything."""
        grid = self._open_grid()
        if self.tile.whole:
            self._span(0)
            self._rows_in_registers()
        else:
            self._looped()
        return self.launching.done(self._template(), self.build.scopes.pop().body, grid, self.tile.warps)

    def _rows_in_registers(self) -> None:
        """Level by level, on values that stay where they are."""
        top = max((self.level[r.out] for r in self.reduces), default=0)
        for number in range(1, top + 1):
            self.build.store(self._full(number - 1))
            reduces = [r for r in self.reduces if self.level[r.out] == number]
            for reduce, value in zip(reduces, self._operands(reduces), strict=True):
                self._collapse(reduce, value, self._masked())
        self.build.store(self._full(top))
        self.build.store(self._row_roots())

    def _looped(self) -> None:
        """A loop for every level; what is full is stored in the first loop that can compute it."""
        top = max(self.level[r.out] for r in self.reduces)
        for number in range(1, top + 1):
            reduces = [r for r in self.reduces if self.level[r.out] == number]
            self._pass(reduces, self._full(number - 1), 0, self.tile.reduced)
        if self._full(top):
            self._pass([], self._full(top), 0, self.tile.reduced)
        self.build.store(self._row_roots())

    def _pass(self, reduces: Sequence[Reduce], full: list[tuple], first: Size, step: Size) -> None:
        build = self.build
        pairs: list[Online] = [o for o in self.online if o.first in reduces and o.second in reduces]
        paired = {r for o in pairs for r in (o.first, o.second)}
        plain = [r for r in reduces if r not in paired]
        names = [self._accumulator(r) for r in plain]
        states = [self._state(o) for o in pairs]
        var = self.row_index + "b"
        build.open(var)
        self._span(sizes.symbol(var))
        build.store(full)
        for reduce, name, value in zip(plain, names, self._operands(plain), strict=True):
            build.emit(Accumulate(name, reduce.op, value, self._masked(), reduce.out.dtype.compute))
        for pair, state in zip(pairs, states, strict=True):
            (value,) = build.values([(pair.source, self.space.reduces[pair.first][1])])
            build.emit(state.step(build.convert(value, pair.first.out.dtype.compute), self.reduced_axis, self.rank, self._masked()))
        body = tuple(build.scopes.pop().body)
        build.emit(For(var, first, build.total(build.reduced), step, self.tile.stages, body))
        for reduce, name in zip(plain, names, strict=True):
            self._collapse(reduce, Ref(name, reduce.out.dtype.compute), ())
        for pair, state in zip(pairs, states, strict=True):
            build.emit(state.close(self._result(pair.first), self._result(pair.second), self.reduced_axis, self.rank))

    def _accumulator(self, reduce: Reduce, prefix: str = "acc") -> str:
        name, held = self.build.fresh(prefix), reduce.out.dtype.compute
        self.build.depth[name] = len(self.build.scopes) - 1
        self.build.emit(Lanes(name, reduce.op.identity(held), self.shape, held))
        return name

    def _state(self, online: Online) -> Softmax | Moments:
        names = [self.build.fresh(p) for p in online.prefixes]
        for name, prefix, value in zip(names, online.prefixes, online.starts, strict=True):
            self.build.depth[name] = len(self.build.scopes) - 1
            shape = self.result_shape if prefix == "top" else self.shape
            self.build.emit(Lanes(name, value, shape, online.first.out.dtype.compute))
        return online.state(names)

    # ---- cut over programs ------------------------------------------------------------------------------------------------------------------

    def cut(self, partials: dict[Reduce, Tensor]) -> BlockLaunch:
        """Every program leaves what it found of a part of the rows."""
        build = self.build
        grid = self._open_grid()
        step = self.tile.reduced * self.tile.parts
        self._pass(self.reduces, self._full(0), sizes.mul(sizes.symbol("s"), self.tile.reduced), step)
        build.store(self._row_roots(0))
        for reduce, memory in partials.items():
            self.store_partial(memory, sizes.symbol("s"), self.space.reduces[reduce][0], build.results[reduce.out])
        return self.launching.done("reduction", build.scopes.pop().body, grid, self.tile.warps)

    def store_partial(self, memory: Tensor, part: Size, index: Sequence[Size], value: Value) -> None:
        """Puts a result at [part, …index]."""
        build = self.build
        name = build.outputs.setdefault(memory, f"part{sum(1 for n in build.outputs.values() if n.startswith('part'))}")
        shape = [self.space.size(n) for n in memory.shape[1:]]
        place = sizes.add(sizes.mul(part, sizes.product(shape)), flatten(index, shape))
        build.emit(Store(name, build.at(place), value))

    # ---- persistent programs ----------------------------------------------------------------------------------------------------------------

    def persistent(self, tile: ReduceTile, columns: dict[Tensor, list[tuple[Reduce, Tensor]]]) -> BlockLaunch:
        """Programs that go over rows; `columns` are sums over rows, by the value that they sum, each with the memory of its parts."""
        build, self.tile, self.online, self.is_inner = self.build, tile, [], True
        self.level = self._levels()
        self.kept_span = self.launching.flat("i", build.kept)
        build.open("g")
        self._span(0)
        sums = [(reduce, memory, self._accumulator(reduce, "column")) for pairs in columns.values() for reduce, memory in pairs]
        rows = build.total(build.kept)
        var = self.kept_span if tile.kept == 1 else self.kept_span + "b"
        build.open(var)
        if tile.kept == 1:
            self.launching.decode(self.kept_span, build.kept)
        else:
            self._rows(sizes.symbol(var))
        self._rows_in_registers()
        for source, pairs in columns.items():
            index = next(i for t, _, i in self.space.roots if t is source)
            stored = next(s for t, s, _ in self.space.roots if t is source)
            (value,) = build.values([(stored, index)])
            for reduce, _, name in [s for s in sums if s[0] in [r for r, _ in pairs]]:
                held = reduce.out.dtype.compute
                masked = self.launching.masked(self.kept_span) if tile.kept > 1 else ()
                build.emit(Accumulate(name, reduce.op, build.convert(value, held), masked, held))
        body = tuple(build.scopes.pop().body)
        build.emit(For(var, sizes.mul(sizes.symbol("g"), tile.kept), rows, tile.programs * tile.kept, tile.stages, body))
        for reduce, memory, name in sums:
            self._store_columns(reduce, memory, name)
        return self.launching.done("rows and columns", build.scopes.pop().body, tile.programs, tile.warps)

    def _store_columns(self, reduce: Reduce, memory: Tensor, name: str) -> None:
        held = reduce.out.dtype.compute
        value: Value = Ref(name, held)
        if self.rank == 2:
            joined = self.build.fresh("joined")
            self.build.depth[joined] = len(self.build.scopes) - 1
            self.build.emit(Collapse(joined, reduce.op, value, 0, self.shape, (), held))
            value = Ref(joined, held)
        index = next(i for t, _, i in self.space.roots if t is reduce.arg)
        kept = [i for d, i in enumerate(index) if d not in reduce.dims]
        self.store_partial(memory, sizes.symbol("g"), kept, value)
