"""The resharding planner: the cheapest sequence of moves from one placement to another on the same mesh.

A shortest path over what each axis does (Dijkstra): slice is free, all-gather, reduce-scatter, all-reduce and all-to-all cost the bytes that
one rank puts on the wire, padding included, plus a latency in bytes. The team of a step is always that of the axis that changes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from interfuse.errors import UnsupportedPlacement
from interfuse.ir import sizes
from interfuse.shard.placement import WHOLE, Cut, Partial, State, States, Whole

StepKind = Literal["slice", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
LATENCY_BYTES = 262144.0  # what starting a collective costs: 0.3 ms at 1 GB/s on Gloo, 25 us at 260 GB/s (more bytes) on NVLink
_SLICE_COST = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """One axis changes from `before` to `after`."""

    kind: StepKind
    axis: int
    before: State
    after: State


@dataclass(frozen=True, slots=True)
class Route:
    """The steps in order and the bytes that one rank sends."""

    steps: tuple[Step, ...]
    wire_bytes: float
    cost: float


@lru_cache(maxsize=65536)
def route(before: States, after: States, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]) -> Route:
    """The cheapest route for a tensor of this *global* shape. Raises UnsupportedPlacement where there is none (whole → partial)."""
    goal = _canonical(after, shape, mesh_shape)
    start = _canonical(before, shape, mesh_shape)
    counter = itertools.count()
    queue: list[tuple[float, int, States, tuple[Step, ...], float]] = [(0.0, next(counter), start, (), 0.0)]
    done: set[States] = set()
    while queue:
        cost, _, here, steps, wire = heapq.heappop(queue)
        if here == goal:
            return Route(steps, wire, cost)
        if here in done:
            continue
        done.add(here)
        for step, step_bytes in _moves(here, goal, shape, itemsize, mesh_shape):
            there = here[: step.axis] + (step.after,) + here[step.axis + 1 :]
            if there not in done:
                extra = step_bytes + LATENCY_BYTES if step.kind != "slice" else _SLICE_COST
                heapq.heappush(queue, (cost + extra, next(counter), there, (*steps, step), wire + step_bytes))
    raise UnsupportedPlacement(f"no way from {before} to {after}: a whole tensor does not become partial")


def _canonical(by_axis: States, shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> States:
    """Cuts that give the same pieces are spelled with grain 1."""
    result: list[State] = []
    for state, parts in zip(by_axis, mesh_shape, strict=True):
        if isinstance(state, Cut) and state.grain != 1:
            n = shape[state.dim]
            if sizes.chunk_size(n, parts, 1) == sizes.chunk_size(n, parts, state.grain):
                state = Cut(state.dim)
        result.append(WHOLE if parts == 1 else state)
    return tuple(result)


def _chunk(cut: Cut, axis: int, shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> int:
    """Elements of a full chunk of the dim that is cut: what a collective pads every shard to."""
    chunk = sizes.chunk_size(shape[cut.dim], mesh_shape[axis], cut.grain)
    assert isinstance(chunk, int)
    return chunk


def _local_bytes(by_axis: States, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]) -> float:
    """Bytes of the largest shard."""
    local = list(shape)
    for axis, state in enumerate(by_axis):
        if isinstance(state, Cut):
            local[state.dim] = _chunk(state, axis, shape, mesh_shape)
    return float(itemsize * math.prod(local))


def _moves(here: States, goal: States, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]) -> list[tuple[Step, float]]:
    """Every step that one axis can take towards something that the goal mentions, with its bytes."""
    local = _local_bytes(here, shape, itemsize, mesh_shape)

    def padding(axis: int, cut: Cut) -> float:
        """How much longer a dim becomes when it is cut in equal chunks."""
        return mesh_shape[axis] * _chunk(cut, axis, shape, mesh_shape) / max(shape[cut.dim], 1)

    wanted = {state for state in goal if isinstance(state, Cut)}
    moves: list[tuple[Step, float]] = []
    for axis, state in enumerate(here):
        parts = mesh_shape[axis]
        fraction = (parts - 1) / parts
        taken = {s.dim for i, s in enumerate(here) if isinstance(s, Cut) and i != axis}
        cuts = sorted((c for c in wanted if c.dim not in taken), key=lambda c: (c.dim, str(c.grain)))
        match state:
            case Whole():
                moves += [(Step("slice", axis, state, cut), 0.0) for cut in cuts]
            case Cut():
                moves.append((Step("all_gather", axis, state, WHOLE), fraction * local * parts))
                moves += [(Step("all_to_all", axis, state, cut), fraction * local * padding(axis, cut)) for cut in cuts if cut.dim != state.dim]
            case Partial():
                moves.append((Step("all_reduce", axis, state, WHOLE), 2 * fraction * local))
                # Dims shorter than the team pad to several times their size; a result that shall lie split is still scattered, not reduced whole.
                moves += [(Step("reduce_scatter", axis, state, cut), fraction * local * min(padding(axis, cut), 2.0)) for cut in cuts]
    return moves
