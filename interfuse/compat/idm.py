"""nvFuser's IdModel: which loops count as one. Here loops carry their origin, and two count as one if they are the same loop."""

from __future__ import annotations

from typing import Any


class DisjointValSets:
    """Classes of loops."""

    def strict_are_mapped(self, a: Any, b: Any) -> bool:
        return a._loop is b._loop


class ValGraph:
    """Loops and which of them count as one."""

    def disjoint_val_sets(self) -> DisjointValSets:
        return DisjointValSets()

    def map_vals(self, a: Any, b: Any) -> None:
        """Accepted; the classes stay what the loops' origins say."""


class IdModel:
    """The loops of one fusion."""

    def __init__(self, fusion: Any, build_graphs: bool = False, allow_self_mapping: bool = True, validate: bool = False) -> None:
        self.fusion = fusion

    def maybe_build_graph(self, mode: Any) -> ValGraph:
        return ValGraph()
