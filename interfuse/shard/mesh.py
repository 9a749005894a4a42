"""A mesh of ranks: any shape, any order, any subset of the world."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from interfuse.errors import MeshError

_DEFAULT_NAMES = ("x", "y", "z", "w", "v", "u")


class Mesh:
    """Ranks on a grid. The last dim is axis `x` (`mesh_x`), the one before `y`, then `z`, unless `names` says otherwise.

    A value: equal if ranks, shape and names are equal. Raises MeshError for duplicate or negative ranks and for bad names.
    """

    __slots__ = ("_hash", "names", "ranks", "shape")

    def __init__(self, ranks: Any, names: Sequence[str] | None = None) -> None:
        shape, flat = _flatten(ranks.tolist() if hasattr(ranks, "tolist") else ranks)
        if not flat:
            raise MeshError("a mesh needs at least one rank")
        if len(set(flat)) != len(flat):
            twice = next(r for r in flat if flat.count(r) > 1)
            raise MeshError(f"mesh {ranks} names rank {twice} twice")
        if min(flat) < 0:
            raise MeshError(f"mesh {ranks} names the negative rank {min(flat)}")
        if names is None:
            if len(shape) > len(_DEFAULT_NAMES):
                raise MeshError(f"a mesh with {len(shape)} dims needs names=(…)")
            names = tuple(reversed(_DEFAULT_NAMES[: len(shape)]))
        if len(names) != len(shape) or len(set(names)) != len(names) or not all(n.isidentifier() for n in names):
            raise MeshError(f"mesh names {tuple(names)} must be {len(shape)} different identifiers, one per dim")
        self.shape, self.ranks, self.names = tuple(shape), tuple(flat), tuple(names)
        self._hash = hash((self.shape, self.ranks, self.names))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def axis_size(self, axis: str) -> int:
        return self.shape[self.names.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int] | None:
        """Position of a rank along every axis, or None for a rank outside."""
        if rank not in self.ranks:
            return None
        position, result = self.ranks.index(rank), {}
        for name, size in zip(reversed(self.names), reversed(self.shape), strict=True):
            position, result[name] = divmod(position, size)
        return result

    def team(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks along `axis` through `rank`, in the axis's order: who takes part when that axis changes."""
        here = self.coordinates(rank)
        if here is None:
            raise MeshError(f"rank {rank} is not in the mesh {self}")
        return tuple(self.rank_at({**here, axis: i}) for i in range(self.axis_size(axis)))

    def rank_at(self, coordinates: dict[str, int]) -> int:
        index = 0
        for name, size in zip(self.names, self.shape, strict=True):
            index = index * size + coordinates[name]
        return self.ranks[index]

    def positions(self) -> Iterator[dict[str, int]]:
        """Coordinates of all ranks, in the mesh's order."""
        for index in itertools.product(*(range(s) for s in self.shape)):
            yield dict(zip(self.names, index, strict=True))

    def nested(self) -> Any:
        """The ranks as nested lists."""

        def build(flat: Sequence[int], shape: Sequence[int]) -> Any:
            if len(shape) <= 1:
                return list(flat)
            step = math.prod(shape[1:])
            return [build(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]

        return build(self.ranks, self.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and (self.ranks, self.shape, self.names) == (other.ranks, other.shape, other.names)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        default = tuple(reversed(_DEFAULT_NAMES[: len(self.shape)]))
        return f"DeviceMesh({self.nested()}{'' if self.names == default else f', names={self.names}'})"

    def __str__(self) -> str:
        axes = " ".join(f"{n}={s}" for n, s in zip(self.names, self.shape, strict=True))
        return axes if self.ranks == tuple(range(self.size)) else f"{axes} ranks {self.nested()}"


def _flatten(ranks: Any) -> tuple[list[int], list[int]]:
    if isinstance(ranks, int):
        return [], [ranks]
    parts = [_flatten(r) for r in ranks]
    if len({tuple(shape) for shape, _ in parts}) > 1:
        raise MeshError(f"mesh {ranks} is not rectangular")
    return [len(parts), *(parts[0][0] if parts else [])], [r for _, flat in parts for r in flat]
