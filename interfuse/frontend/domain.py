"""Loop transforms as nvFuser writes them, and the placement that they mean.

A tensor has one loop per dim, reduced dims included and in place. `split` replaces a loop by two, `merge` two by one; parallelising a loop over
a mesh axis places the tensor. `placement` reads the record back: a loop is traced to the dim that it came from, and the chain of splits on the
way is the placement. What has no placement is an error that names the dim.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Union

from interfuse.errors import NoSuchPlacement, PlacementDimError, PlacementError, SplitFactorError
from interfuse.ir import sizes
from interfuse.ir.sizes import Size
from interfuse.shard.mesh import Mesh
from interfuse.shard.placement import Placement, Split, place


class ParallelType(enum.Enum):
    """What a loop is spread over. Mesh axes place a tensor; the rest belongs to kernel schedules and is recorded."""

    mesh_x = "mesh_x"
    mesh_y = "mesh_y"
    mesh_z = "mesh_z"
    grid_x = "grid_x"
    grid_y = "grid_y"
    grid_z = "grid_z"
    block_x = "block_x"
    block_y = "block_y"
    block_z = "block_z"
    mma = "mma"
    serial = "serial"
    tma = "tma"
    unroll = "unroll"
    unswitch = "unswitch"
    vectorize = "vectorize"
    stream = "stream"

    def __str__(self) -> str:
        return f"ParallelType.{self.name}"


def over_mesh(parallel: ParallelType | str | None) -> bool:
    """Whether a loop so spread lies on a mesh axis, by type or by the axis's name."""
    return isinstance(parallel, str) or parallel in (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)


@dataclass(frozen=True, slots=True)
class Root:
    """A dim of the tensor, or (with `reduction`) a dim that its op reduces."""

    dim: int
    extent: Size
    reduction: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SplitOf:
    """One of the two loops that a split of `parent` gives. `factor` is the extent of the inner loop, or of the outer if not `inner_split`."""

    parent: Loop
    factor: int
    inner_split: bool
    outer: bool


@dataclass(frozen=True, slots=True, eq=False)
class MergeOf:
    outer: Loop
    inner: Loop


Origin = Union[Root, SplitOf, MergeOf]


@dataclass(eq=False, slots=True)
class Loop:
    """A loop and what it is spread over: a mesh axis by type or by name, or None."""

    origin: Origin
    parallel: ParallelType | str | None = None

    def extent(self) -> Size:
        match self.origin:
            case Root():
                return self.origin.extent
            case SplitOf(parent, factor, inner_split, outer):
                return factor if outer != inner_split else sizes.ceildiv(parent.extent(), factor)
            case MergeOf(outer, inner):
                return sizes.mul(outer.extent(), inner.extent())

    def is_reduction(self) -> bool:
        match self.origin:
            case Root():
                return self.origin.reduction
            case SplitOf():
                return self.origin.parent.is_reduction()
            case MergeOf():
                return self.origin.outer.is_reduction()

    def __str__(self) -> str:
        mark = "r" if self.is_reduction() else "i"
        return f"{mark}{'' if self.parallel is None else '@' + str(self.parallel).removeprefix('ParallelType.')}{{{self.extent()}}}"


@dataclass(eq=False, slots=True)
class Domain:
    """The loops of one tensor, in order."""

    loops: list[Loop] = field(default_factory=list)

    def index(self, i: int, what: str) -> int:
        if not -len(self.loops) <= i < len(self.loops):
            raise PlacementDimError(f"{what}: loop {i} of {len(self.loops)}: {self}")
        return i % len(self.loops)

    def split(self, i: int, factor: int, inner_split: bool) -> None:
        i = self.index(i, "split")
        if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
            raise SplitFactorError(f"split of loop {i}: factor {factor!r} must be a positive int")
        parent = self.loops[i]
        if parent.parallel is not None:
            raise PlacementError(f"split of loop {i}: it is already spread over {parent.parallel}")
        self.loops[i : i + 1] = [Loop(SplitOf(parent, factor, inner_split, True)), Loop(SplitOf(parent, factor, inner_split, False))]

    def merge(self, i: int, j: int) -> None:
        i, j = self.index(i, "merge"), self.index(j, "merge")
        outer, inner = self.loops[i], self.loops[j]
        if (
            isinstance(outer.origin, SplitOf)
            and isinstance(inner.origin, SplitOf)
            and outer.origin.parent is inner.origin.parent
            and outer.origin.outer
        ):
            merged = outer.origin.parent
        else:
            merged = Loop(MergeOf(outer, inner))
        self.loops[i] = merged
        del self.loops[j]

    def reorder(self, old_to_new: dict[int, int]) -> None:
        moves = {self.index(o, "reorder"): self.index(n, "reorder") for o, n in old_to_new.items()}
        if len(set(moves.values())) != len(moves):
            raise PlacementDimError(f"reorder: {old_to_new} sends two loops to one place")
        result: list[Loop | None] = [None] * len(self.loops)
        for old, new in moves.items():
            result[new] = self.loops[old]
        rest = iter(loop for i, loop in enumerate(self.loops) if i not in moves)
        self.loops = [loop if loop is not None else next(rest) for loop in result]

    def __str__(self) -> str:
        return "[" + ", ".join(str(loop) for loop in self.loops) + "]"


def axis_of(parallel: ParallelType | str, mesh: Mesh) -> str | None:
    """The mesh axis that a parallel type names: mesh_x is the last dim of the mesh, mesh_y the one before. None for `serial`."""
    if isinstance(parallel, str):
        if parallel not in mesh.names:
            raise PlacementDimError(f"the mesh {mesh} has no axis {parallel!r}; its axes are {', '.join(mesh.names)}")
        return parallel
    order = [ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z]
    if parallel not in order:
        return None
    back = order.index(parallel)
    if back >= mesh.ndim:
        raise PlacementDimError(f"{parallel} names dim {-1 - back} of the mesh, which has {mesh.ndim}: {mesh!r}")
    return mesh.names[-1 - back]


def placement(domain: Domain, mesh: Mesh, ndim: int, name: str) -> tuple[Placement, tuple[str, ...]]:
    """The placement that a tensor's loops mean, and the mesh axes that lie on its reduced dims.

    Raises SplitFactorError, NoSuchPlacement, PlacementDimError, AxisUsedTwice.
    """
    found: list[list[tuple[int, Split]]] = [[] for _ in range(ndim)]
    reduced: list[str] = []
    for loop in domain.loops:
        axis = axis_of(loop.parallel, mesh) if loop.parallel is not None else None
        if axis is None:
            continue
        root, depth, split = _trace(loop, axis, mesh, name)
        if root.reduction:
            reduced.append(axis)
        else:
            found[root.dim].append((depth, split))
    dims = [[split for _, split in sorted(splits, key=lambda item: item[0])] for splits in found]
    return place(mesh, dims), tuple(reduced)


def _trace(loop: Loop, axis: str, mesh: Mesh, name: str) -> tuple[Root, int, Split]:
    """The dim that a parallel loop came from, how many splits lie above it, and the split that it means."""
    d = mesh.axis_size(axis)
    origin = loop.origin
    if isinstance(origin, Root):
        if sizes.known_equal(origin.extent, d) is not True:
            raise SplitFactorError(
                f"{name}: dim {origin.dim} of size {origin.extent} is spread whole over {axis}, which has {d} ranks; "
                f"split it first: outer_split({origin.dim}, {d})"
            )
        return origin, 0, Split(axis)
    if isinstance(origin, MergeOf):
        raise NoSuchPlacement(f"{name}: a loop merged from {origin.outer} and {origin.inner} is spread over {axis}; a merged loop has no placement")
    root, depth = _above(origin.parent, axis, mesh, name)
    if not origin.outer:
        if origin.inner_split and origin.factor == d:
            return root, depth, Split(axis, "cyclic")
        raise NoSuchPlacement(f"{name}: dim {root.dim}: an inner loop of a split by {origin.factor} is spread over {axis}; it has no placement")
    if not origin.inner_split:
        if origin.factor != d:
            raise SplitFactorError(f"{name}: dim {root.dim} is split by {origin.factor}, but axis {axis} has {d} ranks; use outer_split(…, {d})")
        return root, depth, Split(axis)
    extent = origin.parent.extent()
    if sizes.known_equal(sizes.ceildiv(extent, origin.factor), d) is True and sizes.known_equal(sizes.ceildiv(extent, d), origin.factor) is True:
        return root, depth, Split(axis)
    raise SplitFactorError(
        f"{name}: dim {root.dim} of size {extent} is split into chunks of {origin.factor}, which does not give the {d} chunks of axis {axis}; "
        f"use outer_split(…, {d})"
    )


def _above(loop: Loop, axis: str, mesh: Mesh, name: str) -> tuple[Root, int]:
    """The root above a split, through inner loops of splits whose outer loop is itself spread over an axis."""
    origin = loop.origin
    if isinstance(origin, Root):
        return origin, 1
    if isinstance(origin, SplitOf) and not origin.outer and not origin.inner_split:
        root, depth = _above(origin.parent, axis, mesh, name)
        return root, depth + 1
    raise NoSuchPlacement(
        f"{name}: the loop {loop} that is split for axis {axis} is itself the outer part of a split, or merged; it has no placement"
    )
