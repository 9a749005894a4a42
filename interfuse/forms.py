"""What each form promises, as checkers in the order of the flow. A broken promise is a FormError that names the pass and the promise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from interfuse.errors import FormError, UnaskedReplication
from interfuse.ir import sizes
from interfuse.ir.nodes import AllGather, AllReduce, AllToAll, Move, Program, ReduceScatter, Tensor, operands
from interfuse.plan.forms import Emitted, Tiled
from interfuse.plan.fuse import Segmented
from interfuse.plan.order import reads, writes
from interfuse.plan.steps import Alloc, CallAten, CallLibrary, Free, Launch, MakeView, Scheduled, Start, Wait
from interfuse.shard.localize import Local
from interfuse.shard.placed import Placed, Traced
from interfuse.shard.placement import Partial, place, states

_COLLECTIVES = (AllGather, ReduceScatter, AllReduce, AllToAll)


def check(form: Any, after: str, source: Traced) -> None:
    """Checks the promises of whatever form this is."""
    match form:
        case Traced():
            check_program(form.program, after)
            for node in form.program.nodes:
                _promise(not isinstance(node, (Move, *_COLLECTIVES)), after, f"a Traced program has no {type(node).__name__}")
        case Placed():
            check_placed(form, after, source)
        case Local():
            check_program(form.program, after)
            for node in form.program.nodes:
                _promise(not isinstance(node, Move), after, "a Local program has no Move: data crosses ranks in collectives only")
        case Segmented():
            check_segmented(form, after)
        case Scheduled():
            if after == "allocate":
                check_scheduled(form, after)
        case Tiled():
            names = {s.name for s in form.scheduled.segments}
            _promise(set(form.kernels) <= names, after, "every tile program belongs to a segment")
        case Emitted():
            compile(form.host, "<host>", "exec")


def _promise(kept: bool, after: str, what: str) -> None:
    if not kept:
        raise FormError(f"after {after}: {what}")


def check_program(program: Program, after: str) -> None:
    """Every tensor is made once, before it is read; names are unique; outputs exist."""
    made: set[Tensor] = set(program.inputs)
    for node in program.nodes:
        for operand in operands(node):
            _promise(operand in made, after, f"{operand.name} is read by {node.out.name} before it is made")
        _promise(node.out not in made, after, f"{node.out.name} is made twice")
        made.add(node.out)
    names = [t.name for t in program.tensors()]
    _promise(len(set(names)) == len(names), after, f"names are unique: {sorted(n for n in set(names) if names.count(n) > 1)}")
    for t in program.results():
        _promise(t in made, after, f"the output {t.name} is made")


def check_placed(placed: Placed, after: str, source: Traced) -> None:
    """Every tensor has a placement; what the user placed lies as placed; no output is partial unless asked for."""
    check_program(placed.program, after)
    for t in placed.program.tensors():
        _promise(t in placed.placement, after, f"{t.name} has a placement")
    if source.annotations is not None:
        given = {t.name: p for t, p in source.annotations.given.items()}
        for t in placed.program.tensors():
            if t.name in given:
                asked = place(given[t.name].mesh, given[t.name].dims, dict(given[t.name].partial))
                _promise(states(placed.placement[t]) == states(asked), after, f"{t.name} lies as the user placed it")
    for t in placed.program.results():
        partial = any(isinstance(s, Partial) for s in states(placed.placement[t]))
        _promise(not partial or t in placed.given, after, f"the output {t.name} is whole")


def check_segmented(form: Segmented, after: str) -> None:
    """Every tensor that a segment reads is made by an earlier one, once."""
    made: set[Tensor] = set(form.program.inputs)
    for segment in form.segments:
        for t in reads(segment):
            _promise(t in made, after, f"{segment.name} reads {t.name}, which no earlier segment makes")
        for t in writes(segment):
            _promise(t not in made, after, f"{t.name} is made twice")
            made.add(t)
    for t in form.program.results():
        _promise(t in made, after, f"the output {t.name} is made by a segment")


def check_scheduled(form: Scheduled, after: str) -> None:
    """Memory is there when written, results of collectives are read after their wait, nothing is read after it is freed."""
    there: set[Tensor] = set(form.program.inputs)
    flying: set[Tensor] = set()
    base: dict[Tensor, Tensor] = {}
    for step in form.steps:
        match step:
            case Alloc():
                there.add(step.tensor)
            case Free():
                there -= set(step.tensors)
            case MakeView():
                base[step.segment.node.out] = step.segment.node.arg
                there.add(step.segment.node.out)
            case Launch() | CallLibrary() | CallAten() | Start():
                for t in reads(step.segment):
                    _promise(t in there, after, f"{step.segment.name} reads {t.name} while it is in memory")
                    _promise(_root(t, base) not in flying, after, f"{step.segment.name} reads {t.name} after its wait")
                if isinstance(step, Start):
                    flying.add(step.segment.node.out)
                    there |= {step.segment.node.out} if step.in_place else set()
                there |= set(writes(step.segment)) if isinstance(step, CallAten) else set()
                for t in writes(step.segment):
                    _promise(t in there, after, f"{step.segment.name} writes {t.name} into memory that is there")
            case Wait():
                flying.discard(step.segment.node.out)
            case _:
                pass
    _promise(not flying, after, "every collective is waited for")
    for t in form.program.results():
        _promise(t in there, after, f"the output {t.name} is in memory at the end")


def _root(tensor: Tensor, base: dict[Tensor, Tensor]) -> Tensor:
    while tensor in base:
        tensor = base[tensor]
    return tensor


def check_strict(local: Local, strict: bool) -> None:
    """`strict=True` refuses tensors gathered whole that nobody asked for."""
    if strict and local.gathered:
        raise UnaskedReplication("; ".join(local.gathered) + ". Place the tensor, or call without strict=True.")


def symbols_of(size: sizes.Size) -> Iterable[str]:
    return sizes.symbols(size)
