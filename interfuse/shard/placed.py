"""The Placed form: a global program in which every tensor has a placement, and every change of placement is a Move node of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from interfuse.ir.nodes import Program, Tensor
from interfuse.ir.printing import program_text
from interfuse.shard.mesh import Mesh
from interfuse.shard.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """What the user said: the mesh, placements of some tensors of a Traced program, and axes over which a reduction's dims shall be cut.

    `reduces[t]` lists the mesh axes that the user put on the reduction loops of `t`, the result of a Reduce or Contract.
    """

    mesh: Mesh
    given: Mapping[Tensor, Placement] = field(default_factory=dict)
    reduces: Mapping[Tensor, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """The global program as it was written, and what the user said about placements; None: the program knows no mesh."""

    program: Program
    annotations: Annotations | None

    def text(self) -> str:
        """Everything that a plan may depend on, as text: equal texts get equal plans."""
        lines = [program_text(self.program)]
        if self.annotations is not None:
            lines.append(repr(self.annotations.mesh))
            for t in self.program.tensors():
                if t in self.annotations.given:
                    lines.append(f"{t.name} {self.annotations.given[t]}")
                if t in self.annotations.reduces:
                    lines.append(f"{t.name} reduced over {', '.join(self.annotations.reduces[t])}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """`placement` covers every tensor of `program`; `given` are those that the user placed; `why` has one sentence per tensor."""

    program: Program
    mesh: Mesh
    placement: Mapping[Tensor, Placement]
    given: frozenset[Tensor]
    why: Mapping[Tensor, str]
