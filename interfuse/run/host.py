"""What emitted host programs import, and how their text becomes a function."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from interfuse.ir.dtypes import DataType
from interfuse.ir.sizes import chunk_len as _chunk_len
from interfuse.ir.sizes import chunk_lo as _chunk_lo
from interfuse.ir.sizes import evaluate
from interfuse.run import random_state
from interfuse.shard.mesh import Mesh

Main = Callable[..., list[torch.Tensor]]


class HasTeams(Protocol):
    """A communication object: real (`comm.Comm`) or of one process (`local_comm.LocalComm`)."""

    rank: int

    def team(self, ranks: tuple[int, ...]) -> Any: ...


class Rank:
    """One rank's place, which emitted text asks for what differs from rank to rank."""

    def __init__(
        self, mesh: Mesh, rank: int, comm: HasTeams | None, known: Mapping[str, int], draw: Callable[[], tuple[int, int]] = random_state.draw
    ) -> None:
        """`draw` gives the key of a call's random numbers, the same on all ranks."""
        self.draw = draw
        coordinates = mesh.coordinates(rank)
        assert coordinates is not None
        self.mesh, self.rank, self.comm, self.known, self.coordinates = mesh, rank, comm, known, coordinates

    def coordinate(self, axis: str) -> int:
        """This rank's position along a mesh axis."""
        return self.coordinates[axis]

    def size(self, name: str) -> int:
        """A size that the plan left open."""
        return self.known[name]

    def team(self, axis: str) -> Any:
        """The ranks along an axis through this one."""
        assert self.comm is not None
        return self.comm.team(self.mesh.team(self.rank, axis))


def chunk_len(n: int, parts: int, coordinate: int, grain: int = 1) -> int:
    """Length of chunk `coordinate` of `n` elements cut by torch.chunk's ceil rule, never inside `grain` elements."""
    return evaluate(_chunk_len(n, parts, coordinate, grain), {})


def chunk_lo(n: int, parts: int, coordinate: int, grain: int = 1) -> int:
    """First element of chunk `coordinate`."""
    return evaluate(_chunk_lo(n, parts, coordinate, grain), {})


def joined(a: int, b: int) -> int:
    """The size of a dim that two operands share, of which one may be 1 and repeat."""
    return b if a == 1 else a


def scalar(op: str, dtype: str, *args: tuple[bool | int | float | complex, str]) -> bool | int | float | complex:
    """Arithmetic on scalars as PyTorch does it; types by the names of `DataType`."""
    from interfuse.ops.elementwise import ROWS

    values = [torch.tensor(value, dtype=DataType[kind].torch) for value, kind in args]
    return ROWS[op].torch(*values).to(DataType[dtype].torch).item()


def compile_text(text: str, name: str) -> Callable[[Rank, Mapping[str, Callable[..., Any]]], Main]:
    """`bind` of an emitted text. The text is registered with `linecache`, so tracebacks and debuggers show its lines."""
    filename = f"<interfuse plan {name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), namespace)
    return namespace["bind"]
