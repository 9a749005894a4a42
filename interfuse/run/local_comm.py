"""All ranks as threads of one process, with the interface of `comm`: what `simulate` exchanges for the real thing.

The member that is last to issue a collective carries it out for all of them, so nothing is copied twice and nobody waits for more than
that. Every mistake that would hang real ranks is an error at once: members that issue different collectives, a collective that one of them
never issues, a rank that raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from interfuse.errors import PlansDiffer, RankFailed
from interfuse.run.comm import reduce_in_order

T = TypeVar("T")


@dataclass(slots=True)
class Meeting:
    """One collective of one team: what each member that has issued it brought along."""

    ranks: tuple[int, ...]
    kind: str
    op: str
    tensor: str
    facts: str
    first: int
    outs: dict[int, Tensor] = field(default_factory=dict)
    inps: dict[int, Tensor] = field(default_factory=dict)
    done: bool = False

    def __str__(self) -> str:
        return f"{self.kind} of {self.tensor or 'a tensor'} over ranks {list(self.ranks)}"

    def missing(self) -> list[int]:
        """Members that have not issued it."""
        return [rank for rank in self.ranks if rank not in self.outs]

    def carry_out(self) -> None:
        """Fill every member's out. Sums run in rank order, as in `comm`."""
        outs, inps, size = [self.outs[rank] for rank in self.ranks], [self.inps[rank] for rank in self.ranks], len(self.ranks)
        match self.kind:
            case "all_gather":
                for out in outs:
                    torch.cat(inps, out=out)
            case "reduce_scatter":
                for index, out in enumerate(outs):
                    reduce_in_order([inp.view(-1).tensor_split(size)[index] for inp in inps], self.op, out.view(-1))
            case "all_reduce":
                total = torch.empty_like(outs[0])
                reduce_in_order([inp.view(-1) for inp in inps], self.op, total.view(-1))
                for out in outs:
                    out.copy_(total)
            case "all_to_all":
                for index, out in enumerate(outs):
                    torch.cat([inp.tensor_split(size)[index] for inp in inps], out=out)


class LocalWorld:
    """Ranks that are threads. A world serves one `run`; after an error it stays aborted."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self._changed = threading.Condition()
        self._meetings: dict[tuple[tuple[int, ...], int], Meeting] = {}
        self._waiting: dict[int, Meeting] = {}
        self._finished: set[int] = set()
        self._failure: tuple[int, BaseException] | None = None

    def comm(self, rank: int) -> LocalComm:
        """The communication object of one rank, for its thread alone."""
        return LocalComm(self, rank)

    def run(self, fn: Callable[[LocalComm], T]) -> list[T]:
        """Call `fn(comm)` for every rank, each in a thread of its own, and return the results in the order of `ranks`.

        Raises what the first rank that failed raised. Threads run in the caller's grad and inference mode.
        """
        results: dict[int, T] = {}
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def body(rank: int) -> None:
            try:
                with torch.set_grad_enabled(modes[0]), torch.inference_mode(modes[1]):
                    results[rank] = fn(self.comm(rank))
                self._finish(rank)
            except BaseException as error:  # whatever it is, it must end the other threads, and is raised again below
                self.abort(rank, error)

        threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}", daemon=True) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure[1]
        return [results[rank] for rank in self.ranks]

    def abort(self, rank: int, error: BaseException) -> None:
        """Rank `rank` raised `error`: all others raise `RankFailed` where they wait, or at their next collective. The first one counts."""
        with self._changed:
            self._fail(rank, error)

    def join(self, rank: int, ranks: tuple[int, ...], number: int, kind: str, op: str, tensor: str, out: Tensor, inp: Tensor) -> Meeting:
        """Rank `rank` issues the `number`-th collective of team `ranks`. Raises `PlansDiffer` if another member issued something else."""
        shapes = f"{str(inp.dtype).removeprefix('torch.')} {list(inp.shape)} to {list(out.shape)}"
        facts = f"{kind}{f' ({op})' if op else ''} of {tensor or 'a tensor'}, {shapes}"
        with self._changed:
            self._check(rank, kind, tensor)
            meeting = self._meetings.setdefault((ranks, number), Meeting(ranks, kind, op, tensor, facts, rank))
            if facts != meeting.facts:
                raise PlansDiffer(
                    f"collective {number} of ranks {list(ranks)}: rank {meeting.first} issues {meeting.facts}, rank {rank} issues {facts}.",
                    rank=meeting.first,
                    collective=kind,
                    tensor=tensor,
                )
            meeting.outs[rank], meeting.inps[rank] = out, inp
            if not meeting.missing():
                del self._meetings[ranks, number]
                with torch.no_grad():
                    meeting.carry_out()
                meeting.done = True
                self._changed.notify_all()
        return meeting

    def wait(self, rank: int, meeting: Meeting) -> None:
        """Block rank `rank` until the collective is done."""
        with self._changed:
            self._check(rank, meeting.kind, meeting.tensor)
            self._waiting[rank] = meeting
            self._find_deadlock()
            while not meeting.done:
                self._check(rank, meeting.kind, meeting.tensor)
                self._changed.wait()
            del self._waiting[rank]

    def _finish(self, rank: int) -> None:
        with self._changed:
            self._finished.add(rank)
            self._find_deadlock()

    def _find_deadlock(self) -> None:
        stuck = {rank: meeting for rank, meeting in self._waiting.items() if not meeting.done}
        if not stuck or len(stuck) + len(self._finished) < len(self.ranks):
            return
        lines = "; ".join(f"rank {rank} waits in {meeting} for {_ranks(meeting.missing())}" for rank, meeting in sorted(stuck.items()))
        done = f"; {_ranks(sorted(self._finished))} finished" if self._finished else ""
        rank, meeting = min(stuck.items())
        self._fail(rank, RankFailed(f"deadlock: {lines}{done}.", rank=meeting.missing()[0], collective=meeting.kind, tensor=meeting.tensor))

    def _fail(self, rank: int, error: BaseException) -> None:
        if self._failure is None:
            self._failure = rank, error
        self._changed.notify_all()

    def _check(self, rank: int, kind: str, tensor: str) -> None:
        if self._failure is not None:
            culprit, error = self._failure
            original = f"{type(error).__name__}: {error}"
            raise RankFailed(
                f"rank {rank}, {kind} of {tensor or 'a tensor'}: rank {culprit} failed: {original}",
                rank=culprit,
                original=original,
                collective=kind,
                tensor=tensor,
            ) from error


class LocalComm:
    """`comm.Comm` for one thread of a `LocalWorld`."""

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self.world, self.rank, self.members = world, rank, tuple(sorted(world.ranks))
        self._teams: dict[tuple[int, ...], LocalTeam] = {}

    def team(self, ranks: Sequence[int]) -> LocalTeam:
        """The team of `ranks` in this order, which must hold this rank."""
        ranks = tuple(ranks)
        if ranks not in self._teams:
            self._teams[ranks] = LocalTeam(self, ranks)
        return self._teams[ranks]


class LocalTeam:
    """`comm.Team` for threads: the same methods, the same shapes."""

    def __init__(self, comm: LocalComm, ranks: tuple[int, ...]) -> None:
        self.comm, self.ranks, self.size, self.index = comm, ranks, len(ranks), ranks.index(comm.rank)
        self._issued = 0

    def all_gather(self, out: Tensor, inp: Tensor, *, tensor: str = "", sent: int = 0, padding: int = 0) -> LocalWork:
        """out [d·c, …] becomes the members' inp [c, …] in order."""
        return self._work("all_gather", "", tensor, out, inp)

    def reduce_scatter(self, out: Tensor, inp: Tensor, op: str, *, tensor: str = "", sent: int = 0, padding: int = 0) -> LocalWork:
        """out [c, …] becomes chunk `index` of the members' inp [d·c, …], reduced in rank order."""
        return self._work("reduce_scatter", op, tensor, out, inp)

    def all_reduce(self, buffer: Tensor, op: str, *, tensor: str = "", sent: int = 0, padding: int = 0) -> LocalWork:
        """buffer becomes the reduction of the members' buffers, in rank order."""
        return self._work("all_reduce", op, tensor, buffer, buffer)

    def all_to_all(self, out: Tensor, inp: Tensor, *, tensor: str = "", sent: int = 0, padding: int = 0) -> LocalWork:
        """Chunk j of out [d·c, …] becomes chunk `index` of member j's inp [d·c, …]."""
        return self._work("all_to_all", "", tensor, out, inp)

    def _work(self, kind: str, op: str, tensor: str, out: Tensor, inp: Tensor) -> LocalWork:
        self._issued += 1
        world, rank = self.comm.world, self.comm.rank
        return LocalWork(world, rank, world.join(rank, self.ranks, self._issued, kind, op, tensor, out, inp))


class LocalWork:
    """`comm.Work` for threads."""

    __slots__ = ("_meeting", "_rank", "_world")

    def __init__(self, world: LocalWorld, rank: int, meeting: Meeting) -> None:
        self._world, self._rank, self._meeting = world, rank, meeting

    def wait(self) -> None:
        """Return when the result is there. Raises `RankFailed` if another rank failed, or if nobody could ever go on."""
        self._world.wait(self._rank, self._meeting)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {list(ranks)}"
