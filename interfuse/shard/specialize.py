"""specialize: Placed → Placed. The sizes of this call replace symbols; after `propagate`, so that placements never depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interfuse.ir import sizes
from interfuse.ir.rewrite import bind
from interfuse.shard.placed import Placed
from interfuse.shard.placement import Placement, Split


def specialize(placed: Placed, known: Mapping[str, int]) -> Placed:
    """The same object if there is nothing to replace."""
    if not known:
        return placed
    program, new = bind(placed.program, known)

    def numbered(p: Placement) -> Placement:
        dims = tuple(tuple(Split(s.axis, s.style, sizes.substitute(s.grain, known)) for s in d) for d in p.dims)
        return replace(p, dims=dims)

    return Placed(
        program,
        placed.mesh,
        {new[t]: numbered(p) for t, p in placed.placement.items()},
        frozenset(new[t] for t in placed.given if t in new),
        {new[t]: why for t, why in placed.why.items()},
    )
