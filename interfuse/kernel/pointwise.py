"""The templates without reductions: one flat pass, or blocks where a load runs across the grain of the store."""

from __future__ import annotations

from collections import Counter

from interfuse.ir import sizes
from interfuse.ir.sizes import Size
from interfuse.kernel.affine import coefficient
from interfuse.kernel.builder import Builder
from interfuse.kernel.nodes import Array, Element, Load, Write

BLOCK = 4096  # elements of one grid iteration: 16 KiB of float, about half a first-level cache
SIDE = 32  # a transposed block is SIDE x SIDE
PITCH = SIDE + 1  # rows of a staged block are one element longer, so that a column does not fall into one cache set


def crossing(build: Builder) -> tuple[str, list[Load]] | None:
    """The loop along which some loads are contiguous although the store is not, and these loads."""
    if len(build.kept) < 2:
        return None
    *outer, lane = build.kept
    votes: Counter[str] = Counter()
    crossed: dict[str, list[Load]] = {}
    for load in build.loads:
        index = build.at(load.index)
        along = coefficient(index, lane)
        if along in (0, 1, None):
            continue
        for name in outer:
            if coefficient(index, name) == 1:
                votes[name] += 1
                crossed.setdefault(name, []).append(Load(load.buffer, index, build._mask(load.mask), load.dtype))
    if not votes:
        return None
    across = votes.most_common(1)[0][0]
    return across, crossed[across]


def pointwise(build: Builder) -> None:
    """grid over the outer loops and blocks of the innermost; lanes over a block."""
    if not build.kept:
        build.store(build.space.roots)
        return
    *outer, lane = build.kept
    first = lane + "b"
    var, count = build.open_grid(outer, [(first, build.extent[lane], BLOCK)])
    lo = sizes.symbol(first)
    hi = sizes.minimum(sizes.add(lo, BLOCK), build.extent[lane])
    build.open(lane)
    build.store(build.space.roots)
    build.close("lanes", lane, lo, hi)
    build.close("grid", var, 0, count, work=build.total(build.kept))


def transpose(build: Builder, across: str, crossed: list[Load]) -> None:
    """grid over blocks of both loops; crossing loads are read along their own grain into a local block, and used from there."""
    *outer, lane = build.kept
    outer = [name for name in outer if name != across]
    row, column = across + "b", lane + "b"
    var, count = build.open_grid(outer, [(row, build.extent[across], SIDE), (column, build.extent[lane], SIDE)])
    rows = (across, sizes.symbol(row), build.index(across + "e", _end(build, row, across)))
    columns = (lane, sizes.symbol(column), build.index(lane + "e", _end(build, column, lane)))
    at = sizes.add(sizes.mul(sizes.sub(sizes.symbol(across), rows[1]), PITCH), sizes.sub(sizes.symbol(lane), columns[1]))
    staged: dict[Load, Element] = {}
    for load in dict.fromkeys(crossed):
        name = build.fresh("block")
        build.emit(Array(name, load.dtype.compute, SIDE * PITCH))
        staged[load] = Element(name, at, load.dtype.compute)
    build.open(lane)
    build.open(across)
    for load, element in staged.items():
        build.emit(Write(element.array, at, load))
    build.close("lanes", *rows)
    build.close("serial", *columns)
    build.staged = staged
    build.open(across)
    build.open(lane)
    build.store(build.space.roots)
    build.close("lanes", *columns)
    build.close("serial", *rows)
    build.close("grid", var, 0, count, work=build.total(build.kept))


def _end(build: Builder, first: str, loop: str) -> Size:
    return sizes.minimum(sizes.add(sizes.symbol(first), SIDE), build.extent[loop])
