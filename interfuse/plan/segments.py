"""What becomes one launch, one library call, one collective, or nothing at all: the nouns of the Segmented form. Shapes are *local*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from interfuse.ir.nodes import Aten, Collective, Contract, Node, Scalar, Tensor, View


@dataclass(frozen=True, slots=True, eq=False)
class KernelSegment:
    """Nodes that one generated kernel computes.

    `inputs` are dense row-major tensors that exist before it, `outputs` dense row-major tensors that it writes whole; nodes are in order and
    may be Pointwise, Reduce, Broadcast, Reshape, Permute, Slice, Pad, Cat, Full or Iota. Tensors that are neither live only inside. With
    `generated` False the nodes have no kernel expression (or a type that kernels do not compute), and ATen runs them one by one.
    """

    name: str
    inputs: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Tensor, ...]
    template: str
    why: str
    generated: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class LibrarySegment:
    """A matrix product that ATen computes, with the vector that it adds to the last dim, if any; `out` is what the call writes."""

    name: str
    node: Contract
    bias: Tensor | None
    out: Tensor
    why: str
    template: str = "matmul"


@dataclass(frozen=True, slots=True, eq=False)
class AtenSegment:
    """One call of an op that ATen computes whole; `nodes` are its results that are needed, all of one call. Those in `strided` stay in the
    layout in which ATen gives them, the others are dense."""

    name: str
    nodes: tuple[Aten, ...]
    scalars: tuple[Scalar, ...]
    why: str
    template: str = "aten"
    strided: frozenset[Tensor] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveSegment:
    """One collective on dense tensors."""

    name: str
    node: Collective
    why: str
    template: str = "communication"


@dataclass(frozen=True, slots=True, eq=False)
class ViewSegment:
    """The same memory under another shape or stride; costs nothing."""

    name: str
    node: View
    why: str
    template: str = "view"


Segment = Union[KernelSegment, LibrarySegment, AtenSegment, CollectiveSegment, ViewSegment]
