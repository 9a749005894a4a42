"""How a tensor lies on a mesh: a plain frozen value, and the arithmetic of local shapes.

Per dim an ordered list of splits, major to minor; and the axes over which the tensor is partial, with their reduction. Replicated is nothing
at all. Two placements are alike if they are equal: there is no prover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Union

from interfuse.errors import AxisUsedTwice, PlacementDimError, UnsupportedPlacement
from interfuse.ir import sizes
from interfuse.ir.sizes import Size
from interfuse.shard.mesh import Mesh

# ---- what one axis does to a tensor ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """The axis does not touch the tensor: every rank along it holds the same."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The axis cuts `dim` in blocks, never inside `grain` elements."""

    dim: int
    grain: Size = 1


@dataclass(frozen=True, slots=True)
class Partial:
    """The tensor is the reduction (`sum`, `prod`, `min`, `max`) of what the ranks along the axis hold."""

    op: str


State = Union[Whole, Cut, Partial]
States = tuple[State, ...]
WHOLE = Whole()


# ---- the value ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """One mesh axis cutting a dim: by torch.chunk's ceil rule (`block`) or dealing out in turn (`cyclic`), in units of `grain` elements."""

    axis: str
    style: Literal["block", "cyclic"] = "block"
    grain: Size = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """`dims[i]` lists the splits of dim i, major to minor; `partial` pairs an axis with its reduction, in the mesh's order of axes.

    Built through `place`, which drops axes of size 1 and refuses an axis used twice.
    """

    mesh: Mesh
    dims: tuple[tuple[Split, ...], ...]
    partial: tuple[tuple[str, str], ...] = ()

    @property
    def is_replicated(self) -> bool:
        return not self.partial and not any(self.dims)

    def __str__(self) -> str:
        return dims_text(("·",) * len(self.dims), self)


def place(mesh: Mesh, dims: Sequence[Sequence[Split]], partial: Mapping[str, str] | None = None) -> Placement:
    """The canonical placement. Raises AxisUsedTwice, PlacementDimError."""
    seen: set[str] = set()
    for axis in [s.axis for splits in dims for s in splits] + list(partial or {}):
        if axis not in mesh.names:
            raise PlacementDimError(f"the mesh {mesh} has no axis {axis!r}; its axes are {', '.join(mesh.names)}")
        if axis in seen:
            raise AxisUsedTwice(f"mesh axis {axis!r} is used twice in one tensor; an axis can cut one dim, or be partial, once")
        seen.add(axis)
    kept = tuple(tuple(s for s in splits if mesh.axis_size(s.axis) > 1) for splits in dims)
    order = [(a, (partial or {})[a]) for a in mesh.names if a in (partial or {}) and mesh.axis_size(a) > 1]
    return Placement(mesh, kept, tuple(order))


def replicated(mesh: Mesh, ndim: int) -> Placement:
    return Placement(mesh, ((),) * ndim)


def states(placement: Placement) -> States:
    """What each axis does, in the mesh's order of axes. Raises UnsupportedPlacement for cyclic splits and dims cut by several axes."""
    by_axis: dict[str, State] = dict((placement.partial and ((a, Partial(op)) for a, op in placement.partial)) or ())
    for d, splits in enumerate(placement.dims):
        if len(splits) > 1:
            raise UnsupportedPlacement(
                f"dim {d} is split by several axes ({', '.join(s.axis for s in splits)}); only one axis per dim is supported so far"
            )
        for split in splits:
            if split.style != "block":
                raise UnsupportedPlacement(f"dim {d} has a cyclic split over {split.axis}; only block splits are supported so far")
            by_axis[split.axis] = Cut(d, split.grain)
    return tuple(by_axis.get(a, WHOLE) for a in placement.mesh.names)


def from_states(mesh: Mesh, ndim: int, by_axis: States) -> Placement:
    dims: list[tuple[Split, ...]] = [()] * ndim
    partial = {}
    for axis, state in zip(mesh.names, by_axis, strict=True):
        if isinstance(state, Cut):
            dims[state.dim] = (Split(axis, "block", state.grain),)
        elif isinstance(state, Partial):
            partial[axis] = state.op
    return place(mesh, dims, partial)


# ---- local shapes ---------------------------------------------------------------------------------------------------------------------------


def coordinate(axis: str) -> Size:
    """The symbol that stands for a rank's position along an axis."""
    return sizes.symbol(axis)


def local_size(size: Size, splits: Sequence[Split], mesh: Mesh) -> Size:
    """Length of a rank's piece of a dim, in its mesh coordinates. Several splits cut recursively, major first, as DTensor does."""
    for split in splits:
        if split.style != "block":
            raise UnsupportedPlacement(f"cyclic split over {split.axis}; only block splits are supported so far")
        size = sizes.chunk_len(size, mesh.axis_size(split.axis), coordinate(split.axis), split.grain)
    return size


def local_shape(shape: Sequence[Size], placement: Placement) -> tuple[Size, ...]:
    """Local shape for a global one."""
    return tuple(local_size(s, splits, placement.mesh) for s, splits in zip(shape, placement.dims, strict=True))


def local_start(size: Size, splits: Sequence[Split], mesh: Mesh) -> Size:
    """Global index of the first element of a rank's piece."""
    start: Size = 0
    for split in splits:
        d = mesh.axis_size(split.axis)
        start = sizes.add(start, sizes.chunk_lo(size, d, coordinate(split.axis), split.grain))
        size = sizes.chunk_len(size, d, coordinate(split.axis), split.grain)
    return start


def same_cut(size: Size, parts: int, a: Cut, b: Cut) -> bool:
    """Whether two cuts of a dim of `size` give every rank the same elements."""
    if a.dim != b.dim:
        return False
    if a.grain == b.grain:
        return True
    return sizes.known_equal(sizes.chunk_size(size, parts, a.grain), sizes.chunk_size(size, parts, b.grain)) is True


def dims_text(shape: Sequence[object], placement: Placement) -> str:
    """`[2048@dp, 256] +tp`: the user's spelling of a shape and where it lies."""
    parts = []
    for size, splits in zip(shape, placement.dims, strict=True):
        marks = "".join("@" + s.axis + ("~" if s.style == "cyclic" else "") + (f"/{s.grain}" if s.grain != 1 else "") for s in splits)
        parts.append(f"{size}{marks}")
    symbol = {"sum": "", "prod": "*", "min": "min ", "max": "max "}
    partial = "".join(f" +{symbol.get(op, op + ' ')}{axis}" for axis, op in placement.partial)
    return "[" + ", ".join(parts) + "]" + partial
