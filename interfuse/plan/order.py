"""order: Segmented → Scheduled. One order of steps for all ranks: a collective starts as soon as its operand is there and is waited for only
where its result is read, so that work between runs beside it.

The order depends on the program alone, so every rank issues the collectives of a team in the same order.
"""

from __future__ import annotations

from interfuse.ir.nodes import Const, Scalar, ScalarCompute, Tensor, operands
from interfuse.plan.fuse import Segmented
from interfuse.plan.segments import AtenSegment, CollectiveSegment, KernelSegment, LibrarySegment, Segment, ViewSegment
from interfuse.plan.steps import CallAten, CallLibrary, Compute, Dense, HostStep, Launch, MakeView, Scheduled, Start, Wait


def order(segmented: Segmented, *, generated: bool = True) -> Scheduled:
    """Without `generated` kernels, ATen runs their nodes."""
    steps: list[HostStep] = [Dense(t) for t in _read_densely(segmented, generated)]
    steps += _scalars(segmented)
    pending: dict[Tensor, CollectiveSegment] = {}
    viewed: dict[Tensor, Tensor] = {}

    def wait_for(tensor: Tensor) -> None:
        while tensor in viewed:
            tensor = viewed[tensor]
        if tensor in pending:
            steps.append(Wait(pending.pop(tensor)))

    for segment in segmented.segments:
        if isinstance(segment, ViewSegment):
            viewed[segment.node.out] = segment.node.arg
            steps.append(MakeView(segment))
            continue
        for tensor in reads(segment):
            wait_for(tensor)
        match segment:
            case KernelSegment():
                steps.append(Launch(segment))
            case LibrarySegment():
                steps.append(CallLibrary(segment))
            case AtenSegment():
                steps.append(CallAten(segment))
            case CollectiveSegment():
                steps.append(Start(segment))
                pending[segment.node.out] = segment
    steps += [Wait(c) for c in pending.values()]
    return Scheduled(segmented.program, segmented.segments, tuple(steps), segmented.refusals)


def reads(segment: Segment) -> tuple[Tensor, ...]:
    """The tensors in memory that a segment reads."""
    match segment:
        case KernelSegment():
            return segment.inputs
        case LibrarySegment():
            return (segment.node.a, segment.node.b, *((segment.bias,) if segment.bias else ()))
        case AtenSegment():
            return tuple(dict.fromkeys(operands(segment.nodes[0])))
        case _:
            return (segment.node.arg,)


def writes(segment: Segment) -> tuple[Tensor, ...]:
    """The tensors in memory that a segment makes."""
    match segment:
        case KernelSegment():
            return segment.outputs
        case LibrarySegment():
            return (segment.out,)
        case AtenSegment():
            return tuple(node.out for node in segment.nodes)
        case _:
            return (segment.node.out,)


def _read_densely(segmented: Segmented, generated: bool) -> list[Tensor]:
    """Inputs that kernels or collectives read, directly or through views. ATen takes any strides, and its results may depend on them (a strided
    loop is not vectorised): where it runs all readers, an input stays as it is."""
    base = {s.node.out: s.node.arg for s in segmented.segments if isinstance(s, ViewSegment)}
    found: dict[Tensor, None] = {}
    inputs = set(segmented.program.inputs)
    for segment in segmented.segments:
        if isinstance(segment, (LibrarySegment, AtenSegment)):
            continue
        through_aten = isinstance(segment, KernelSegment) and not (generated and segment.generated)
        for tensor in reads(segment):
            if through_aten and tensor not in base:
                continue
            while tensor in base:
                tensor = base[tensor]
            if tensor in inputs:
                found[tensor] = None
    return list(found)


def _scalars(segmented: Segmented) -> list[HostStep]:
    """Scalars that the host computes for kernels, innermost first."""
    names: dict[Scalar, str] = {}
    steps: list[HostStep] = []

    def visit(scalar: Scalar) -> None:
        if isinstance(scalar, ScalarCompute) and scalar not in names:
            for arg in scalar.args:
                visit(arg)
            names[scalar] = f"c_{len(names)}"
            steps.append(Compute(names[scalar], scalar))

    for segment in segmented.segments:
        if isinstance(segment, (KernelSegment, AtenSegment)):
            for scalar in segment.scalars:
                if not isinstance(scalar, Const):
                    visit(scalar)
    return steps
