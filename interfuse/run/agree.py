"""Agreement between ranks, through the store: who called what, who failed, who is gone.

Every set of member ranks has one log in the store, to which each member appends and which each reads from its own cursor: signatures of
program calls ("post"), failures ("abort"), clean exits ("leave"). Nobody reads it while all goes well; a rank that waits polls it, which
costs one small request while there is nothing new. Calls are numbered per member set by a plain counter on each rank, so that ranks
which call different programs in the same numbered call find each other out.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NoReturn

from interfuse.errors import PlansDiffer, RankFailed
from interfuse.run.communicator import Communicator, wait_until

Signature = dict[str, Any]

REMEMBERED_CALLS = 1024  # a rank that runs ahead still answers for this many of its calls
FIRST_PATIENCE_S, LAST_PATIENCE_S = 0.5, 10.0  # blocked this long, a rank says unasked what it calls; doubled each time, so logs stay short
PULSE_S = 0.5  # how often a blocked rank looks whether the processes that it waits for live
GRACE_S = 3.0  # how long a broken connection waits for an explanation


@dataclass(slots=True)
class Ledger:
    """What this process knows of the calls of one member set; shared by all programs on these members."""

    communicator: Communicator
    members: tuple[int, ...]
    number: int = 0
    cleared: int = 0  # this rank raised in this call; what went wrong up to it is over. Also the generation of the teams
    patience_s: float = FIRST_PATIENCE_S
    cursor: int = 0
    history: dict[int, Signature] = field(default_factory=dict)
    posts: dict[tuple[int, str], dict[int, Signature]] = field(default_factory=dict)
    posted: set[tuple[int, str]] = field(default_factory=set)
    aborts: list[dict[str, Any]] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)  # rank → the last call that it finished before a clean exit

    @property
    def prefix(self) -> str:
        """Where the store keeps what belongs to these members: "0..7", or "0-2-5" where they are no range."""
        low, high = self.members[0], self.members[-1]
        return f"{low}..{high}" if high - low + 1 == len(self.members) else "-".join(map(str, self.members))

    def append(self, **entry: Any) -> None:
        """Append to the log. Raises the store's own error where the store is lost."""
        store = self.communicator.store()
        place = store.add(f"{self.prefix}/entries", 1) - 1
        store.set(f"{self.prefix}/log/{place}", json.dumps({**entry, "by": self.communicator.rank()}))

    def read(self) -> None:
        """Take in what was appended since the last time. Raises the store's own error where the store is lost."""
        store = self.communicator.store()
        while store.check([key := f"{self.prefix}/log/{self.cursor}"]):
            entry = json.loads(store.get(key))
            self.cursor += 1
            match entry["kind"]:
                case "post":
                    answers = self.posts.setdefault((entry["call"], entry["topic"]), {})
                    answers[entry["by"]] = entry["signature"]
                case "abort":
                    self.aborts.append(entry)
                case "leave":
                    self.left[entry["by"]] = entry["call"]

    def remember(self, number: int, signature: Signature) -> None:
        """Keep what this rank calls under this number, and forget what lies too far back."""
        self.history[number] = signature
        if len(self.history) > REMEMBERED_CALLS:
            oldest = number - REMEMBERED_CALLS // 2
            self.history = {call: kept for call, kept in self.history.items() if call >= oldest}
            self.posted = {key for key in self.posted if key[0] >= oldest}
            self.aborts = [kept for kept in self.aborts if kept["call"] > self.cleared]

    def leave(self) -> None:
        """Say at exit how far this rank came, so that its going is not taken for a crash. Raises where the store is lost."""
        if len(self.members) > 1:
            self.append(kind="leave", call=self.number)


class Agreement:
    """One program's view of its members: numbers calls, compares them, and is the watch that every wait polls.

    `members` are the ranks of the program's meshes, in any order; `program` names the program in messages; `timeout_s` bounds every wait.
    A call goes `begin`, perhaps `agree`, then collectives that `poll`; whoever raises calls `abort`, after which all members may begin the
    next call, with new teams (`generation`). A rank that finished the failed call without waiting for anything more learns of it where it
    next waits, one call late, and raises there.
    """

    def __init__(self, communicator: Communicator, members: Iterable[int], program: str, timeout_s: float) -> None:
        self.communicator, self.members, self.program, self.timeout_s = communicator, tuple(sorted(members)), program, timeout_s
        self.rank = communicator.rank()
        self._ledger: Ledger = communicator.ledgers.setdefault(self.members, Ledger(communicator, self.members))
        self._last_pulse_s = 0.0

    @property
    def generation(self) -> int:
        """The call in which this rank last raised, 0 at first. Teams of an earlier generation are unusable."""
        return self._ledger.cleared

    @property
    def number(self) -> int:
        """The call that runs now."""
        return self._ledger.number

    @property
    def fingerprint(self) -> int | None:
        """63 bits of the plan of the call that runs now; None if it has none, which its other members then lack too."""
        plan = self._ledger.history[self._ledger.number].get("plan", "")
        return int.from_bytes(hashlib.sha256(plan.encode()).digest()[:8], "big") >> 1 if plan else None

    def differs(self, team: Iterable[int], collective: str, tensor: str) -> NoReturn:
        """Ranks of a team run different plans: say so with what each of them calls, on every one."""
        others = [member for member in team if member != self.rank]
        wait_until(lambda: False, GRACE_S, lambda _: self.poll(collective, tensor, awaited=others, blocked_s=LAST_PATIENCE_S + 1))
        self._raise(PlansDiffer(f"{self._where(collective, tensor)}: {_ranks(team)} run different plans", collective=collective, tensor=tensor))

    def begin(self, signature: Signature | None = None) -> int:
        """Start a call of this program and return its number (1, 2, …) among the calls of these members. No store traffic.

        `signature` is what this rank would say if asked; it must be JSON-able, is kept, and may be the same object each time.
        """
        self._ledger.number += 1
        self._ledger.remember(self._ledger.number, {"program": self.program} if signature is None else signature)
        return self._ledger.number

    def agree(self, number: int, signature: Signature, topic: str = "plan") -> dict[int, Signature]:
        """Exchange signatures for call `number` with all members and return them by rank. One call may agree on several topics in turn.

        A member that has no need to agree answers, where it next waits, with its call's signature, which may lack the keys of this topic.
        Raises `PlansDiffer`, on every member, if "program" or "plan" differ (a list of strings "decisions" says where), and `RankFailed`
        if a member aborts, dies, or does not answer within `timeout_s`.
        """
        ledger = self._ledger
        signature = {"program": self.program, **ledger.history.get(number, {}), **signature}
        ledger.remember(number, signature)
        if self.members == (self.rank,):
            return {self.rank: signature}
        ledger.patience_s = FIRST_PATIENCE_S
        what = f"agreement on the {topic}"
        try:
            self._post(number, topic)
        except RuntimeError as error:
            self._lost_store(error, what, self.program)
        answers = ledger.posts.setdefault((number, topic), {})

        def missing() -> list[int]:
            return [member for member in self.members if member not in answers]

        def poll(_: float) -> None:
            self.poll(what, self.program, awaited=missing(), speaks_next=lambda: not missing())

        if not wait_until(lambda: not missing(), self.timeout_s, poll):
            self.expire(what, self.program, awaited=missing())
        self._compare(what, self.program)
        return {member: answers[member] for member in self.members}

    def poll(
        self,
        collective: str = "",
        tensor: str = "",
        *,
        awaited: Iterable[int] = (),
        blocked_s: float = 0.0,
        speaks_next: Callable[[], bool] = lambda: False,
    ) -> None:
        """Look around while waiting for ranks `awaited` since `blocked_s` seconds: answer who asks, raise what went wrong.

        `speaks_next` tells, once the log is read, that this rank will go on in this call and is to be asked about it no more.
        Raises `PlansDiffer` or `RankFailed`; either counts as this rank's failure in this call and is recorded for the others.
        """
        ledger = self._ledger
        try:
            ledger.read()
            latest = ledger.number - speaks_next()
            for call, topic in list(ledger.posts):
                if ledger.cleared < call <= latest and call in ledger.history:
                    self._post(call, topic)
            if blocked_s > ledger.patience_s and (ledger.number, "plan") not in ledger.posted:
                ledger.patience_s = min(2 * ledger.patience_s, LAST_PATIENCE_S)
                self._post(ledger.number, "plan")
        except RuntimeError as error:
            self._lost_store(error, collective, tensor)
        self._compare(collective, tensor)
        if speaks_next():
            return  # Whoever failed after answering is found at the next wait; first this rank judges what all answered, as they do.
        self._raise_abort(collective, tensor)
        if time.monotonic() - self._last_pulse_s > PULSE_S:
            self._last_pulse_s = time.monotonic()
            self._raise_gone(awaited, collective, tensor)

    def failed(self, error: Exception, team: Iterable[int], collective: str, tensor: str) -> NoReturn:
        """A transport error came up in `collective` of `tensor` over ranks `team`: raise the `RankFailed` that names the culprit.

        The others get `GRACE_S` to explain themselves: by an abort record, by being gone, or, if neither, by not answering.
        """
        others = [member for member in team if member != self.rank]
        call = (self._ledger.number, "plan")
        deadline_s = time.monotonic() + GRACE_S
        silent = others
        while silent and time.monotonic() < deadline_s:
            self._last_pulse_s = 0.0
            self.poll(collective, tensor, awaited=others, blocked_s=LAST_PATIENCE_S + 1)
            answers = self._ledger.posts.get(call, {})
            silent = [member for member in others if member not in answers]
            time.sleep(0.05)
        dead = [member for member in silent if self.communicator.process_is(member) == "unknown"]
        culprit = f"{_ranks(dead)} did not answer for {GRACE_S:g} s" if dead else "all ranks are alive: the connection itself broke"
        self._raise(
            RankFailed(
                f"{self._where(collective, tensor)}: {_first_line(error)}; {culprit}.",
                rank=dead[0] if dead else None,
                original=str(error),
                collective=collective,
                tensor=tensor,
            )
        )

    def expire(self, collective: str, tensor: str, *, awaited: Iterable[int]) -> NoReturn:
        """`timeout_s` has passed: raise the `RankFailed` that says who did not come, or not even say what it is calling."""
        awaited = [member for member in awaited if member != self.rank]
        answers = self._ledger.posts.get((self._ledger.number, "plan"), {})
        silent = [member for member in awaited if member not in answers] or awaited
        text = f"{_ranks(silent)} did not answer within {self.timeout_s:g} s. If that is honest work, raise INTERFUSE_TIMEOUT."
        self._raise(
            RankFailed(
                f"{self._where(collective, tensor)}: {text}",
                rank=silent[0] if silent else None,
                collective=collective,
                tensor=tensor,
            )
        )

    def abort(self, error: BaseException) -> None:
        """Tell all members that this rank raised `error` in the current call. After an error from `poll`, or a second time: nothing."""
        ledger = self._ledger
        if ledger.cleared < ledger.number:
            self._record(self.rank, type(error).__name__, str(error))

    def _post(self, call: int, topic: str) -> None:
        ledger = self._ledger
        if len(self.members) > 1 and (call, topic) not in ledger.posted:
            ledger.posted.add((call, topic))
            ledger.append(kind="post", call=call, topic=topic, signature=ledger.history[call])

    def _compare(self, collective: str, tensor: str) -> None:
        ledger = self._ledger
        for call, topic in list(ledger.posts):
            mine = ledger.history.get(call)
            if mine is None or call > ledger.number:
                continue
            answers = ledger.posts[call, topic]
            if call < ledger.number or call <= ledger.cleared:
                del ledger.posts[call, topic]  # Compared now, for the first and last time, or settled by an error.
            for rank, theirs in answers.items():
                if call > ledger.cleared and rank != self.rank and (difference := _difference(self.rank, mine, rank, theirs)):
                    low, high = sorted((self.rank, rank))
                    self._raise(
                        PlansDiffer(
                            f"call {call} of {_ranks(self.members)}: ranks {low} and {high} differ: {difference}. "
                            "Every rank of a program's meshes must call the same programs in the same order.",
                            rank=rank,
                            collective=collective,
                            tensor=tensor,
                        )
                    )

    def _raise_abort(self, collective: str, tensor: str) -> None:
        ledger = self._ledger
        for entry in ledger.aborts:
            if entry["by"] != self.rank and ledger.cleared < entry["call"] <= ledger.number:
                rank, original = entry["rank"], f"{entry['error']}: {entry['message']}"
                text = f"rank {rank} failed in call {entry['call']} of program {entry['program']!r}: {original}"
                text, kind = f"{self._where(collective, tensor)}: {text}", RankFailed
                if entry["error"] == "PlansDiffer":
                    text, kind = entry["message"], PlansDiffer
                self._raise(kind(text, rank=rank, original=original, collective=collective, tensor=tensor))

    def _raise_gone(self, awaited: Iterable[int], collective: str, tensor: str) -> None:
        gone = [member for member in awaited if member != self.rank and self.communicator.process_is(member) == "gone"]
        if not gone:
            return
        try:
            self._ledger.read()  # It may have explained itself between our reading the log and its going.
        except RuntimeError as error:
            self._lost_store(error, collective, tensor)
        self._raise_abort(collective, tensor)
        for rank in gone:
            last = self._ledger.left.get(rank)
            if last is None:
                reason = "its process is gone"
            elif last < self._ledger.number:
                reason = f"it ended after call {last}"
            else:
                continue  # It ended well after doing its part; what keeps us waiting is somebody else.
            self._raise(
                RankFailed(
                    f"{self._where(collective, tensor)}: rank {rank} is dead: {reason}.",
                    rank=rank,
                    original=reason,
                    collective=collective,
                    tensor=tensor,
                )
            )

    def _lost_store(self, error: Exception, collective: str, tensor: str) -> NoReturn:
        gone = [rank for rank, process in self.communicator.processes.items() if rank != self.rank and process.state() == "gone"]
        rank = gone[0] if gone else self.communicator.store_host
        who = f"rank {rank} is dead" if gone else "the store is lost" + ("" if rank is None else f", which rank {rank} hosts")
        self._raise(
            RankFailed(
                f"{self._where(collective, tensor)}: {who}: {_first_line(error)}",
                rank=rank,
                original=str(error),
                collective=collective,
                tensor=tensor,
            )
        )

    def _raise(self, error: RankFailed) -> NoReturn:
        ledger = self._ledger
        if any(entry["call"] == ledger.number for entry in ledger.aborts):
            ledger.cleared = ledger.number
        elif ledger.cleared < ledger.number:
            # The others name whom we name, and are told what we found.
            told = str(error) if isinstance(error, PlansDiffer) else error.original or str(error)
            self._record(self.rank if error.rank is None else error.rank, type(error).__name__, told)
        raise error

    def _record(self, rank: int, error: str, message: str) -> None:
        ledger = self._ledger
        ledger.cleared = ledger.number
        if len(self.members) == 1:
            return
        try:
            ledger.append(kind="abort", rank=rank, error=error, message=message, call=ledger.number, program=self.program)
        except RuntimeError:
            pass  # Without a store nobody can be told; what this rank is about to raise matters more.

    def _where(self, collective: str, tensor: str) -> str:
        what = f"{collective} of {tensor}" if collective and tensor else collective or "waiting"
        return f"rank {self.rank}, call {self._ledger.number} of program {self.program!r}, {what}"


def _difference(rank: int, mine: Signature, other: int, theirs: Signature) -> str:
    """What two signatures say differently, in rank order; empty if the same, or where one of them does not say."""
    if rank > other:
        rank, mine, other, theirs = other, theirs, rank, mine
    if mine.get("program") != theirs.get("program"):
        return f"rank {rank} called {mine.get('program')!r} and rank {other} called {theirs.get('program')!r}"
    if "plan" not in mine or "plan" not in theirs or mine["plan"] == theirs["plan"]:
        return ""
    for place, (here, there) in enumerate(zip_longest(mine.get("decisions", ()), theirs.get("decisions", ()), fillvalue="nothing more")):
        if here != there:
            return f"decision {place} is {here!r} on rank {rank} and {there!r} on rank {other}"
    return f"plan {mine['plan']!r} on rank {rank} and {theirs['plan']!r} on rank {other}"


def _ranks(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip()
