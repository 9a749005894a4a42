"""The Placed form: a global program in which every tensor has a placement, and every change of placement is a Move node of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from interfuse.ir.nodes import Program, Tensor
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
class Placed:
    """`placement` covers every tensor of `program`; `given` are those that the user placed; `why` has one sentence per tensor."""

    program: Program
    mesh: Mesh
    placement: Mapping[Tensor, Placement]
    given: frozenset[Tensor]
    why: Mapping[Tensor, str]
