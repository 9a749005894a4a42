"""What a rank does, in order: the nouns of the Scheduled form. Shapes are *local*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from interfuse.ir.nodes import Program, Scalar, Tensor
from interfuse.ir.sizes import Size
from interfuse.plan.segments import AtenSegment, CollectiveSegment, KernelSegment, LibrarySegment, Segment, ViewSegment


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """An input is made dense, which costs nothing where it is already."""

    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Alloc:
    """Memory for a tensor."""

    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """The host computes a scalar; `name` is what later steps call it."""

    name: str
    scalar: Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A kernel."""

    segment: KernelSegment


@dataclass(frozen=True, slots=True, eq=False)
class CallLibrary:
    """A library call into memory that is there."""

    segment: LibrarySegment


@dataclass(frozen=True, slots=True, eq=False)
class CallAten:
    """An op that ATen computes whole, into memory of its own."""

    segment: AtenSegment


@dataclass(frozen=True, slots=True, eq=False)
class MakeView:
    """Another shape or stride for memory that is there."""

    segment: ViewSegment


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """A collective begins; `in_place` tells that it works in its operand's memory."""

    segment: CollectiveSegment
    in_place: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """Nothing later may read the collective's result before this, nor free its operand."""

    segment: CollectiveSegment


@dataclass(frozen=True, slots=True, eq=False)
class Free:
    """Names that nothing reads any more."""

    tensors: tuple[Tensor, ...]


HostStep = Union[Dense, Alloc, Compute, Launch, CallLibrary, CallAten, MakeView, Start, Wait, Free]


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """Steps in order. `peak_bytes` is what temporaries and outputs hold at most on the rank with the largest shards."""

    program: Program
    segments: tuple[Segment, ...]
    steps: tuple[HostStep, ...]
    refusals: tuple[str, ...]
    peak_bytes: Size = 0
