"""Kernel segment → launches over blocks: which template holds the nodes, and what it writes.

Templates: `pointwise` and `transpose` (a tile per program), `reduction` and `normalization` (rows in registers, or looped; over rows that are read
along their grain, or across it), each cut over programs with a finishing launch where it has few results, and `rows and columns` (results per
row and per column in one pass: persistent programs that keep columns in registers, and a finishing launch).
"""

from __future__ import annotations

from collections.abc import Sequence

from interfuse.ir import sizes
from interfuse.ir.nodes import Node, Reduce, Tensor, operands
from interfuse.kernel.block_nest import Launching, Nest
from interfuse.kernel.blocks import BlockKernel, BlockLaunch
from interfuse.kernel.builder import Builder
from interfuse.kernel.pointwise import crossing
from interfuse.kernel.schedule import MOST_COLUMNS, PointwiseTile, pointwise_tile, power_of_two, rows_tile
from interfuse.kernel.space import Refused, Space, analyse, is_trivial, is_unit, loops_of
from interfuse.kernel.target import Target
from interfuse.kernel.tile import inputs_of
from interfuse.plan.segments import KernelSegment


def refuse_block(nodes: Sequence[Node], outputs: Sequence[Tensor]) -> str | None:
    """None where one template can hold these nodes; else one sentence with the facts that stand against it."""
    try:
        analyse(nodes, outputs)
    except Refused as reason:
        return None if rows_and_columns(nodes, outputs) is not None else str(reason)
    return None


def block_template_of(nodes: Sequence[Node], outputs: Sequence[Tensor]) -> str:
    """As `template_of`; results over rows and over columns make a normalization."""
    if rows_and_columns(nodes, outputs) is not None:
        return "normalization"
    space = analyse(nodes, outputs)
    if space.reduces:
        return "normalization" if space.levels > 1 or space.has_full_output else "reduction"
    return "transpose" if crossing(Builder(space, inputs_of(nodes, outputs), outputs)) else "pointwise"


def block(segment: KernelSegment, target: Target) -> BlockKernel:
    """The launches of a segment on a target; raises `Refused` where `refuse_block` has a reason."""
    mixed = rows_and_columns(segment.nodes, segment.outputs)
    if mixed is not None:
        launches, scratch = _mixed(segment, mixed, target)
    else:
        launches, scratch = _plain(segment, target)
    return BlockKernel(segment.template, (*segment.inputs, *segment.outputs), tuple(scratch), tuple(launches), target.name)


def _plain(segment: KernelSegment, target: Target) -> tuple[list[BlockLaunch], list[Tensor]]:
    space = analyse(segment.nodes, segment.outputs)
    launching = Launching(segment.name, space, segment.inputs, segment.outputs, target)
    if not space.reduces:
        return [_pointwise(launching)], []
    nest = Nest(launching)
    parts = nest.cut_into
    if parts == 1:
        return [nest.whole()], []
    partials = {r: partial(r, parts) for r in nest.reduces}
    main = nest.cut(partials)
    return [main, _finish(segment, partials, target)], list(partials.values())


def partial(reduce: Reduce, parts: int) -> Tensor:
    """Memory for what each of the programs found: [parts, …result], in the type of accumulation."""
    return Tensor(f"{reduce.out.name}_parts", (parts, *reduce.out.shape), reduce.out.dtype.compute)


def _finish(segment: KernelSegment, partials: dict[Reduce, Tensor], target: Target) -> BlockLaunch:
    """Joins the parts in their order and computes what follows from the results."""
    nodes, outputs = _following(segment.nodes, segment.outputs, partials)
    space = analyse(nodes, outputs)
    launching = Launching(f"{segment.name}_finish", space, inputs_of(nodes, outputs), outputs, target)
    return Nest(launching, finishing=True).whole() if space.reduces else _pointwise(launching)


def _following(nodes: Sequence[Node], outputs: Sequence[Tensor], partials: dict[Reduce, Tensor]) -> tuple[list[Node], list[Tensor]]:
    """The nodes that join parts and compute the outputs that depend on them, and these outputs."""
    found: list[Node] = [Reduce(r.out, r.op, p, (0,)) for r, p in partials.items()]
    made = {r.out for r in partials}
    wanted = [t for t in outputs if _depends(t, nodes, made)]
    needed = set(wanted)
    after: list[Node] = []
    for node in reversed(nodes):
        if node.out in needed and node.out not in made:
            after.insert(0, node)
            needed.update(operands(node))
    return [*found, *after], wanted


def _depends(tensor: Tensor, nodes: Sequence[Node], made: set[Tensor]) -> bool:
    """Whether a tensor is computed from any of `made`."""
    found = set(made)
    for node in nodes:
        if any(t in found for t in operands(node)):
            found.add(node.out)
    return tensor in found


# ---- pointwise ------------------------------------------------------------------------------------------------------------------------------


def _pointwise(launching: Launching) -> BlockLaunch:
    build = launching.build
    crossed = crossing(build)
    if not build.kept:
        build.open_grid([], [])
        build.store(build.space.roots)
        return launching.done("pointwise", build.scopes.pop().body, 1, 1)
    across = crossed[0] if crossed else build.kept[-2] if len(build.kept) > 1 else None
    tile = pointwise_tile(launching, across, crossed is not None)
    if tile.is_flat:
        body, grid = _flat(launching, tile)
    else:
        body, grid = _tiled(launching, across, tile)
    return launching.done("transpose" if crossed else "pointwise", body, grid, tile.warps)


def _flat(launching: Launching, tile: PointwiseTile) -> tuple[list, sizes.Size]:
    """One block of the flat index a program; loops are cut out of it."""
    build = launching.build
    build.open("g")
    name = launching.flat("x", build.kept)
    launching.span(name, sizes.mul(sizes.symbol("g"), tile.columns), tile.columns, build.total(build.kept), 0, 1)
    launching.decode(name, build.kept)
    build.store(build.space.roots)
    return build.scopes.pop().body, sizes.ceildiv(build.total(build.kept), tile.columns)


def _tiled(launching: Launching, across: str | None, tile: PointwiseTile) -> tuple[list, sizes.Size]:
    """A tile of the innermost loop and one other a program."""
    build = launching.build
    *outer, lane = build.kept
    outer = [name for name in outer if name != across]
    rank = 2 if tile.rows > 1 else 1
    if across is not None and rank == 1:
        outer.append(across)
    blocks = [(lane + "b", build.extent[lane], tile.columns)]
    if across is not None and rank == 2:
        blocks.insert(0, (across + "b", build.extent[across], tile.rows))
    _, grid = build.open_grid(outer, blocks)
    if across is not None and rank == 2:
        launching.span(across, sizes.symbol(across + "b"), tile.rows, build.extent[across], 0, rank)
    launching.span(lane, sizes.symbol(lane + "b"), tile.columns, build.extent[lane], rank - 1, rank)
    build.store(build.space.roots)
    return build.scopes.pop().body, grid


# ---- rows and columns -----------------------------------------------------------------------------------------------------------------------


class Mixed:
    """A program of rows, and the reductions over its rows whose operands it makes: `space` has those operands as further outputs."""

    def __init__(self, space: Space, columns: tuple[Reduce, ...], outputs: tuple[Tensor, ...]) -> None:
        self.space, self.columns, self.outputs = space, columns, outputs


def rows_and_columns(nodes: Sequence[Node], outputs: Sequence[Tensor]) -> Mixed | None:
    """How nodes fall into a program of rows and sums over rows, where they reduce along both; rows must fit in registers."""
    reduces = [n for n in nodes if isinstance(n, Reduce) and not is_trivial(n)]
    if len(reduces) < 2:
        return None
    for kind in dict.fromkeys((str(r.arg.shape), r.dims) for r in reduces):
        columns = tuple(r for r in reduces if (str(r.arg.shape), r.dims) == kind)
        if len(columns) < len(reduces) and (found := _mixed_by(nodes, outputs, columns)) is not None:
            return found
    return None


def _mixed_by(nodes: Sequence[Node], outputs: Sequence[Tensor], columns: tuple[Reduce, ...]) -> Mixed | None:
    made = {r.out for r in columns}
    after = {n.out for n in nodes if n.out in made or _depends(n.out, nodes, made)}
    kept_outputs = tuple(t for t in outputs if t not in after)
    sources = tuple(dict.fromkeys(r.arg for r in columns if r.arg not in kept_outputs))
    if any(r.arg in after for r in columns):
        return None
    needed = {*kept_outputs, *sources}
    before: list[Node] = []
    for node in reversed(nodes):
        if node.out in needed:
            before.insert(0, node)
            needed.update(operands(node))
    try:
        space = analyse(before, [*kept_outputs, *sources])
        finishing = analyse(*_following(nodes, outputs, {r: partial(r, 2) for r in columns}))
    except Refused:
        return None
    if not space.reduces or finishing.has_full_output:
        return None
    for reduce in columns:
        index = next(i for t, stored, i in space.roots if t is reduce.arg)
        if len(index) != reduce.arg.ndim:
            return None
        if loops_of(index[d] for d in reduce.dims) != set(space.kept) or loops_of(index) != {*space.kept, *space.reduced}:
            return None
    length = sizes.product(reduce.arg.shape[d] for d in range(reduce.arg.ndim) if d not in reduce.dims)
    if not isinstance(length, int) or power_of_two(length) > MOST_COLUMNS:
        return None
    return Mixed(space, columns, kept_outputs)


def _mixed(segment: KernelSegment, mixed: Mixed, target: Target) -> tuple[list[BlockLaunch], list[Tensor]]:
    nodes = mixed.space.nodes
    sources = [r.arg for r in mixed.columns]
    rows = inputs_of(nodes, sources)
    launching = Launching(segment.name, mixed.space, rows, mixed.outputs, target)
    nest = Nest(launching)
    tile = rows_tile(launching, nest.row_length, nest.row_count)
    partials = {r: partial(r, tile.programs) for r in mixed.columns}
    main = nest.persistent(tile, {source: [(r, partials[r]) for r in mixed.columns if r.arg is source] for source in sources})
    return [main, _finish(segment, partials, target)], list(partials.values())


__all__ = ["block", "block_template_of", "is_unit", "refuse_block"]
