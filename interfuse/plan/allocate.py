"""allocate: Scheduled → Scheduled. Memory for every tensor right before it is written, freed right after it is last read.

Views keep their base alive; an operand of a collective lives until the wait. An all-reduce works in its operand's memory where that memory is
the program's own and nothing reads it afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from interfuse.ir import sizes
from interfuse.ir.nodes import AllReduce, Tensor
from interfuse.ir.sizes import Size
from interfuse.plan.order import reads, writes
from interfuse.plan.steps import Alloc, CallAten, CallLibrary, Free, HostStep, Launch, MakeView, Scheduled, Start, Wait


def allocate(scheduled: Scheduled) -> Scheduled:
    base = _bases(scheduled)
    last = _last_use(scheduled, base)
    owned = {t for s in scheduled.steps if isinstance(s, (Launch, CallLibrary, CallAten, Start)) for t in writes(s.segment)}
    kept = {base.get(t, t) for t in scheduled.program.results()} | set(scheduled.program.inputs)
    steps: list[HostStep] = []
    live: dict[Tensor, Size] = {}
    names: dict[Tensor, list[Tensor]] = {}
    peaks: list[Size] = []
    for index, step in enumerate(scheduled.steps):
        if isinstance(step, (Launch, CallLibrary, CallAten, Start)):
            if isinstance(step, Start):
                step = _in_place(step, index, scheduled, owned, kept, base)
            for t in writes(step.segment):
                if isinstance(step, Start) and step.in_place:
                    live[t] = live.pop(step.segment.node.arg)
                    names[t] = [*names.pop(step.segment.node.arg), t]
                else:
                    if not isinstance(step, CallAten):
                        steps.append(Alloc(t))
                    live[t] = _bytes(t)
                    names[t] = [t]
            peaks.append(sizes.add(*live.values()))
        if isinstance(step, MakeView):
            names.setdefault(base[step.segment.node.out], [base[step.segment.node.out]]).append(step.segment.node.out)
        steps.append(step)
        gone = [t for t in live if last.get(t, index) <= index and t not in kept]
        for t in gone:
            del live[t]
        dead = tuple(n for t in gone for n in names[t])
        if dead:
            steps.append(Free(dead))
    return replace(scheduled, steps=tuple(steps), peak_bytes=_largest(peaks))


def _bases(scheduled: Scheduled) -> dict[Tensor, Tensor]:
    """The tensor whose memory a view shows."""
    base: dict[Tensor, Tensor] = {}
    for step in scheduled.steps:
        if isinstance(step, MakeView):
            arg = step.segment.node.arg
            base[step.segment.node.out] = base.get(arg, arg)
    return base


def _last_use(scheduled: Scheduled, base: dict[Tensor, Tensor]) -> dict[Tensor, int]:
    """The last step that needs a tensor's memory."""
    last: dict[Tensor, int] = {}
    for index, step in enumerate(scheduled.steps):
        match step:
            case Launch() | CallLibrary() | CallAten() | Start() | MakeView():
                touched = (*reads(step.segment), *writes(step.segment))
            case Wait():
                touched = (step.segment.node.arg, step.segment.node.out)
            case _:
                touched = ()
        for t in touched:
            last[base.get(t, t)] = index
    return last


def _in_place(step: Start, index: int, scheduled: Scheduled, owned: set[Tensor], kept: set[Tensor], base: dict[Tensor, Tensor]) -> Start:
    """An all-reduce whose operand is the program's own memory that nothing else reads from now on."""
    if not isinstance(step.segment.node, AllReduce):
        return step
    source = step.segment.node.arg
    if source in base or source not in owned or source in kept:
        return step
    for later in scheduled.steps[index + 1 :]:
        if isinstance(later, (Launch, CallLibrary, CallAten, Start, MakeView)) and any(base.get(t, t) is source for t in reads(later.segment)):
            return step
    return replace(step, in_place=True)


def _bytes(tensor: Tensor) -> Size:
    return sizes.mul(sizes.product(tensor.shape), tensor.dtype.itemsize)


def _largest(peaks: list[Size]) -> Size:
    """The largest of the sums; exact when sizes are numbers."""
    result: Size = 0
    for p in dict.fromkeys(peaks):
        result = max(result, p) if isinstance(result, int) and isinstance(p, int) else sizes.maximum(result, p)
    return result
