"""The templates with reductions: kept loops outside, passes over the reduced loops inside, one per level of reductions.

`inner`: the lanes run along the reduced loop that is contiguous in memory, over WIDTH accumulators that are folded pairwise; the order of the
sum is a function of the sizes alone. `outer`: the lanes run along a kept loop, one accumulator each, over rows that are read whole.
A reduction with few kept elements is cut into CHUNKS pieces, however many threads there are, so that results never depend on their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from interfuse.ir import sizes
from interfuse.ir.nodes import Pointwise, Reduce
from interfuse.ir.sizes import Size
from interfuse.kernel.affine import coefficient, flatten
from interfuse.kernel.builder import Builder
from interfuse.kernel.nodes import Array, Branch, Element, Fold, Merge, Ref, Write
from interfuse.kernel.space import Point, is_full, loops_of

WIDTH = 32  # accumulators of an inner reduction: four 8-lane vectors hide the latency of an add
ROW = 512  # accumulators of an outer reduction: 2 KiB of a row at a time
SHORT = 16  # elements of a row too short for lanes
CHUNKS = 64  # pieces of a reduction that has few kept elements
FEW = 32  # grid iterations below which it is cut
CHEAP = frozenset({"abs", "neg", "relu", "maximum", "minimum", "where", "reciprocal"})  # sooner computed again than stored and read
MANY = 65536  # elements above which cutting pays


def lane_loop(build: Builder) -> str:
    """The loop along which most of the full-sized loads are contiguous; a reduced one where it is a draw.

    Rows known to be shorter than SHORT would leave lanes idle: then the lanes run over rows, whose block lies in the nearest cache.
    """
    lane = _contiguous(build)
    length = build.known(build.extent[lane])
    short = lane in build.reduced and build.kept and isinstance(length, int) and length < SHORT
    return build.kept[-1] if short else lane


def _contiguous(build: Builder) -> str:
    votes: Counter[str] = Counter({build.reduced[-1]: 0})
    loops = build.kept + build.reduced
    depths = {load: sum(coefficient(build.at(load.index), name) != 0 for name in loops) for load in build.loads}
    for load, depth in depths.items():
        if depth == max(depths.values()):
            for name in loops:
                votes[name] += coefficient(build.at(load.index), name) == 1
    return max(votes, key=lambda name: (votes[name], name in build.reduced, name == build.reduced[-1]))


def reduction(build: Builder) -> None:
    """Writes the whole kernel, in two forms where it may have to be cut into chunks."""
    lane = lane_loop(build)
    nest = Inner(build, lane) if lane in build.reduced else Outer(build, lane)
    if build.space.levels > 1 or build.space.has_full_output:
        nest.whole()
        return
    few, work = nest.grid_count(), build.total(build.kept + build.reduced)
    cut, whole = _body(build, nest.cut), _body(build, nest.whole)
    build.emit(Branch(few, FEW, work, MANY, cut, whole))


def _body(build: Builder, write: Callable[[], None]) -> tuple:
    """What `write` puts into a scope of its own; names and results start anew."""
    build.results.clear()
    build.open()
    write()
    return tuple(build.scopes.pop().body)


class _Nest:
    """What both forms share: passes by level, then the stores."""

    def __init__(self, build: Builder, lane: str) -> None:
        self.build, self.lane = build, lane
        self.reduced = [name for name in build.reduced if name != lane]
        self.grid = [name for name in build.kept if name != lane]
        self.reduces = [r for r in build.space.nodes if isinstance(r, Reduce) and r in build.space.reduces]
        self.full = [root for root in build.space.roots if is_full(root[2], build.space.reduced)]
        self.rows = [root for root in build.space.roots if not is_full(root[2], build.space.reduced)]

    def level(self, number: int) -> list[Reduce]:
        return [r for r in self.reduces if self.build.space.level[r.out] == number]

    def operands(self, reduces: Sequence[Reduce]) -> list:
        return self.build.values([(r.arg, self.build.space.reduces[r][1]) for r in reduces])

    def serial(self, names: Sequence[str], inside: Callable[[], None], bounds: dict[str, tuple[Size, Size]] | None = None) -> None:
        """Serial loops, outer to inner, around what `inside` writes."""
        if not names:
            inside()
            return
        name = names[0]
        self.build.open(name)
        self.serial(names[1:], inside, bounds)
        lo, hi = (bounds or {}).get(name, (0, self.build.extent[name]))
        self.build.close("serial", name, lo, hi)

    def chunk(self, loop: str, count: Size) -> tuple[Size, Size]:
        """First and last + 1 index of this grid iteration's piece of a loop; the piece's number is the innermost part of the grid."""
        build = self.build
        length = sizes.ceildiv(build.extent[loop], CHUNKS)
        lo = build.index("lo", sizes.minimum(sizes.mul(sizes.symbol("k"), length), build.extent[loop]))
        hi = build.index("hi", sizes.minimum(sizes.add(lo, length), build.extent[loop]))
        return lo, hi

    def partials(self) -> list[str]:
        """Arrays for the results of all chunks, chunk by chunk."""
        names = []
        for reduce in self.reduces:
            names.append(name := self.build.fresh("part"))
            count = sizes.mul(CHUNKS, self.build.total(self.build.kept))
            self.build.emit(Array(name, reduce.out.dtype.compute, count, "kernel"))
        return names

    def place(self) -> Size:
        """Where the result of chunk `k` for the present kept index lies."""
        build = self.build
        kept = flatten([sizes.symbol(n) for n in build.kept], [build.extent[n] for n in build.kept])
        return sizes.add(sizes.mul(sizes.symbol("k"), build.total(build.kept)), kept)


class Inner(_Nest):
    """Lanes along a reduced loop."""

    def grid_count(self) -> Size:
        return self.build.total(self.grid)

    def whole(self) -> None:
        build = self.build
        var, count = build.open_grid(self.grid, [])
        passes = [self.level(number) for number in range(1, build.space.levels + 1)]
        kept = self._keep_rows(passes)
        for number, reduces in enumerate(passes):
            self.one_pass(reduces, 0, build.extent[self.lane], {})
            build.written |= kept[number]
        if self.full:
            self.serial(self.reduced, self._store_row)
        build.store(self.rows)
        build.close("grid", var, 0, count, work=build.total(build.kept + build.reduced))

    def _keep_rows(self, passes: Sequence[Sequence[Reduce]]) -> list[set[Point]]:
        """Costly values that a later pass needs again get a row of memory: which, by the pass that writes them."""
        build, space = self.build, self.build.space
        roots: list[list[Point]] = [[(r.arg, space.reduces[r][1], ()) for r in reduces] for reduces in passes]
        roots.append([(stored, index, ()) for _, stored, index in self.full])
        needed = [{(t, index, mask) for t, points in build.wanted(each).items() for index, mask in points} for each in roots]
        kept: list[set[Point]] = [set() for _ in passes]
        for node in space.nodes:
            if not (isinstance(node, Pointwise) and node.op.cpp.startswith("if_") and node.op.name not in CHEAP):
                continue
            for number, points in enumerate(needed[:-1]):
                later = set().union(*needed[number + 1 :])
                for point in sorted((p for p in points & later if p[0] is node.out and not p[2]), key=lambda p: str(p[1])):
                    if point not in build.rows and set(space.reduced) <= loops_of(point[1]):
                        build.rows[point] = name = build.fresh("row")
                        build.depth[name] = len(build.scopes) - 1
                        build.emit(Array(name, node.out.dtype.compute, build.total(build.reduced), "thread"))
                        kept[number].add(point)
        return kept

    def _store_row(self) -> None:
        self.build.open(self.lane)
        self.build.store(self.full)
        self.build.close("lanes", self.lane, 0, self.build.extent[self.lane])

    def one_pass(self, reduces: Sequence[Reduce], lo: Size, hi: Size, bounds: dict[str, tuple[Size, Size]]) -> None:
        """Accumulates over full tiles of WIDTH lanes and the rest, then folds the lanes."""
        build, var = self.build, sizes.symbol(self.lane)
        names = build.accumulators(reduces, WIDTH, 0, "l", WIDTH)
        start = self.lane + "b"
        end = build.index(build.fresh("end"), sizes.add(lo, sizes.mul(sizes.floordiv(sizes.sub(hi, lo), WIDTH), WIDTH)))

        def tiles() -> None:
            build.open(start)
            lanes(sizes.symbol(start), sizes.add(sizes.symbol(start), WIDTH))
            build.close("serial", start, lo, end, step=WIDTH)
            lanes(end, hi)

        def lanes(first: Size, last: Size) -> None:
            build.open(self.lane)
            build.update(reduces, names, sizes.sub(var, first), self.operands(reduces))
            build.close("lanes", self.lane, first, last)

        self.serial(self.reduced, tiles, bounds)
        for reduce, name in zip(reduces, names, strict=True):
            held, result = reduce.out.dtype.compute, build.fresh("sum" if reduce.op.name == "sum" else "red")
            build.emit(Fold(result, reduce.op, name, WIDTH, held))
            build.depth[result] = len(build.scopes) - 1
            build.results[reduce.out] = Ref(result, held)

    def cut(self) -> None:
        build = self.build
        parts = self.partials()
        split = [*self.reduced, self.lane][0]
        var, count = build.open_grid(self.grid, [("k", CHUNKS, 1)])
        lo, hi = self.chunk(split, count)
        bounds = (lo, hi) if split == self.lane else (0, build.extent[self.lane])
        self.one_pass(self.reduces, *bounds, {split: (lo, hi)})
        for reduce, part in zip(self.reduces, parts, strict=True):
            build.emit(Write(part, self.place(), build.results[reduce.out]))
        build.close("grid", var, 0, count, work=build.total(build.kept + build.reduced))
        var, count = build.open_grid(self.grid, [])
        names = build.accumulators(self.reduces, 1, 0, "l", 1)
        self._combine(parts, names)
        for reduce, name in zip(self.reduces, names, strict=True):
            held, result = reduce.out.dtype.compute, build.fresh("red")
            build.emit(Fold(result, reduce.op, name, 1, held))
            build.depth[result] = len(build.scopes) - 1
            build.results[reduce.out] = Ref(result, held)
        build.store(self.rows)
        build.close("grid", var, 0, count, work=0)

    def _combine(self, parts: Sequence[str], names: Sequence[str]) -> None:
        build = self.build
        build.open("k")
        for reduce, part, name in zip(self.reduces, parts, names, strict=True):
            held = reduce.out.dtype.compute
            build.emit(Write(name, 0, Merge(reduce.op, Element(name, 0, held), Element(part, self.place(), held), held)))
        build.close("serial", "k", 0, CHUNKS)


class Outer(_Nest):
    """Lanes along a block of a kept loop."""

    def grid_count(self) -> Size:
        return sizes.mul(self.build.total(self.grid), sizes.ceildiv(self.build.extent[self.lane], ROW))

    def _open(self, *more: tuple[str, Size, int]) -> tuple[str, Size]:
        build, first = self.build, self.lane + "b"
        opened = build.open_grid(self.grid, [(first, build.extent[self.lane], ROW), *more])
        self.lo = sizes.symbol(first)
        self.hi = build.index(self.lane + "e", sizes.minimum(sizes.add(self.lo, ROW), build.extent[self.lane]))
        return opened

    def lanes(self, inside: Callable[[], None]) -> None:
        self.build.open(self.lane)
        inside()
        self.build.close("lanes", self.lane, self.lo, self.hi)

    def here(self) -> Size:
        return sizes.sub(sizes.symbol(self.lane), self.lo)

    def one_pass(self, reduces: Sequence[Reduce], bounds: dict[str, tuple[Size, Size]]) -> None:
        names = self.build.accumulators(reduces, ROW, self.lo, self.lane, self.hi)

        def step() -> None:
            self.build.update(reduces, names, self.here(), self.operands(reduces))

        self.serial(self.reduced, lambda: self.lanes(step), bounds)
        self._keep(reduces, names)

    def _keep(self, reduces: Sequence[Reduce], names: Sequence[str]) -> None:
        for reduce, name in zip(reduces, names, strict=True):
            self.build.results[reduce.out] = Element(name, self.here(), reduce.out.dtype.compute)

    def whole(self) -> None:
        build = self.build
        var, count = self._open()
        for number in range(1, build.space.levels + 1):
            self.one_pass(self.level(number), {})
        self._stores()
        build.close("grid", var, 0, count, work=build.total(build.kept + build.reduced))

    def _stores(self) -> None:
        if self.full:
            self.serial(self.reduced, lambda: self.lanes(lambda: self.build.store(self.full)))
        if self.rows:
            self.lanes(lambda: self.build.store(self.rows))

    def cut(self) -> None:
        build = self.build
        parts = self.partials()
        var, count = self._open(("k", CHUNKS, 1))
        bounds = {self.reduced[0]: self.chunk(self.reduced[0], count)}
        self.one_pass(self.reduces, bounds)
        self.lanes(lambda: self._publish(parts))
        build.close("grid", var, 0, count, work=build.total(build.kept + build.reduced))
        var, count = self._open()
        names = build.accumulators(self.reduces, ROW, self.lo, self.lane, self.hi)
        build.open("k")
        self.lanes(lambda: self._merge(parts, names))
        build.close("serial", "k", 0, CHUNKS)
        self._keep(self.reduces, names)
        self._stores()
        build.close("grid", var, 0, count, work=sizes.mul(CHUNKS, build.total(build.kept)))

    def _publish(self, parts: Sequence[str]) -> None:
        for reduce, part in zip(self.reduces, parts, strict=True):
            self.build.emit(Write(part, self.place(), self.build.results[reduce.out]))

    def _merge(self, parts: Sequence[str], names: Sequence[str]) -> None:
        for reduce, part, name in zip(self.reduces, parts, names, strict=True):
            held = reduce.out.dtype.compute
            merged = Merge(reduce.op, Element(name, self.here(), held), Element(part, self.place(), held), held)
            self.build.emit(Write(name, self.here(), merged))
