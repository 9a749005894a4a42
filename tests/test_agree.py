"""Agreement on real ranks: whoever fails, dies or goes elsewhere is named on all others, soon, and the rest goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_pool import Died, run_on_ranks

from interfuse.errors import PlansDiffer, RankFailed
from interfuse.run.agree import Agreement
from interfuse.run.comm import Comm
from interfuse.run.communicator import Communicator, Process

pytestmark = pytest.mark.xdist_group("ranks")


def world(program: str = "f", timeout_s: float = 20.0) -> tuple[Agreement, Comm]:
    """An agreement and a comm over all ranks of the pool."""
    communicator = Communicator.instance()
    agreement = Agreement(communicator, range(communicator.size()), program, timeout_s)
    return agreement, Comm(communicator, agreement.members, agreement)


def add_up(comm: Comm, numel: int = 4) -> float:
    """One all-reduce of ones over all members."""
    buffer = torch.ones(numel)
    comm.team(comm.members).all_reduce(buffer, "sum", tensor="h").wait()
    return buffer[-1].item()


def fate(fn: Callable[[], Any]) -> tuple[str, str, dict[str, Any], float]:
    """What `fn` raises: class, message, facts, seconds."""
    start_s = time.monotonic()
    try:
        fn()
    except RankFailed as error:
        facts = {name: getattr(error, name) for name in ("rank", "original", "collective", "tensor")}
        return type(error).__name__, str(error), facts, time.monotonic() - start_s
    return "", "", {}, time.monotonic() - start_s


def rank_agrees() -> list[Any]:
    agreement, comm = world()
    number = agreement.begin()
    answers = agreement.agree(number, {"sizes": [comm.rank, 7]}, topic="sizes")
    assert [answer["sizes"] for answer in answers.values()] == [[rank, 7] for rank in comm.members]
    answers = agreement.agree(number, {"plan": "abc", "decisions": ["x"]})
    assert {answer["plan"] for answer in answers.values()} == {"abc"}
    return [number, add_up(comm), agreement.begin()]


def rank_aborts() -> list[Any]:
    """Rank 1 raises in one call, before its collective; all go on, twice over."""
    agreement, comm = world()
    fates, sums = [], []
    for step in range(4):
        agreement.begin()
        if step in (1, 2) and comm.rank == 1:
            agreement.abort(ValueError(f"bad input in step {step}"))
        elif step in (1, 2):
            fates.append(fate(lambda: add_up(comm)))
            agreement.abort(RuntimeError("told already"))
        else:
            sums.append(add_up(comm))
    return [fates, sums]


def rank_aborts_late() -> list[Any]:
    """Rank 1 raises after its last collective: the others have finished that call and learn of it in the next."""
    agreement, comm = world()
    results = []
    for step in range(3):
        agreement.begin()
        results.append(fate(lambda: add_up(comm)))
        if step == 0 and comm.rank == 1:
            agreement.abort(ValueError("late"))
            time.sleep(0.1)
    agreement.begin()
    return [*results, add_up(comm)]


def rank_dies(where: str) -> Any:
    agreement, comm = world("train", timeout_s=10.0)
    agreement.begin()
    assert add_up(comm) == len(comm.members)
    agreement.begin()
    if comm.rank == 1:
        if where == "agree":
            os._exit(3)
        comm.team(comm.members).all_reduce(torch.ones(5_000_000), "sum")
        os._exit(3)
    if where == "agree":
        return fate(lambda: agreement.agree(2, {"plan": "p"}))
    return fate(lambda: add_up(comm, 5_000_000))


def rank_hosting_the_store_dies() -> Any:
    agreement, comm = world("train", timeout_s=10.0)
    agreement.begin()
    add_up(comm)
    agreement.begin()
    if comm.rank == 0:
        os._exit(3)
    return fate(lambda: add_up(comm))


def rank_leaves_early() -> Any:
    agreement, comm = world("train", timeout_s=10.0)
    agreement.begin()
    add_up(comm)
    if comm.rank == 1:
        return None
    agreement.begin()
    return fate(lambda: add_up(comm))


def rank_calls_another_program(cached: bool) -> list[Any]:
    """The last rank calls g where the others call f, which they know already; then all call f."""
    agreement, comm = world("f")
    other, _ = world("g")
    agreement.agree(agreement.begin(), {"plan": "f0", "decisions": ["a"]})
    add_up(comm)
    if comm.rank == comm.members[-1]:
        number = other.begin({"program": "g", "plan": "g0"})
        seen = fate(lambda: _poll_forever(other) if cached else other.agree(number, {"plan": "g0"}))
    else:
        agreement.begin({"program": "f", "plan": "f0", "decisions": ["a"]})
        seen = fate(lambda: add_up(comm))
    agreement.begin()
    return [*seen, add_up(comm)]


def _poll_forever(agreement: Agreement) -> None:
    start_s = time.monotonic()
    while True:
        agreement.poll("something", "g", blocked_s=time.monotonic() - start_s)
        time.sleep(0.05)


def rank_plans_differently() -> Any:
    agreement, comm = world()
    decisions = ["h [512@tp]", "all_gather h" if comm.rank < 2 else "reduce_scatter h"]
    return fate(lambda: agreement.agree(agreement.begin(), {"plan": str(decisions), "decisions": decisions}))


def rank_answers_for_an_earlier_call() -> list[Any]:
    """Rank 0 runs ahead from its cache while rank 1 asks about an earlier call: it answers once it waits."""
    agreement, comm = world()
    signature = {"program": "f", "plan": "p"}
    if comm.rank == 0:
        for _ in range(3):
            agreement.begin(signature)
    else:
        agreement.agree(agreement.begin(signature), {"plan": "p"})
        agreement.begin(signature), agreement.begin(signature)
    return [add_up(comm)]


def rank_times_out() -> Any:
    agreement, comm = world(timeout_s=2.0)
    agreement.begin()
    if comm.rank == 1:
        time.sleep(3.0)
        return fate(lambda: add_up(comm))
    return fate(lambda: agreement.agree(1, {}) if comm.rank == 2 else add_up(comm))


def rank_is_on_another_host() -> Any:
    """As far as the system can tell: nobody sees the others' processes."""
    Process.state = lambda self: "unknown"
    return rank_dies("collective")


def rank_has_other_sizes() -> Any:
    """All know their plans, but rank 1's moves less in the same team, and Gloo ends it for that."""
    agreement, comm = world()
    agreement.begin()
    return fate(lambda: add_up(comm, 100_000 if comm.rank == 1 else 200_000))


def rank_works_for_long() -> float:
    agreement, comm = world(timeout_s=10.0)
    agreement.begin()
    if comm.rank == 1:
        time.sleep(1.5)
    return add_up(comm)


def test_members_agree_and_number_their_calls() -> None:
    assert run_on_ranks(2, rank_agrees, fresh=True) == [[1, 2.0, 2]] * 2


def test_an_abort_reaches_the_others_and_all_go_on() -> None:
    results = run_on_ranks(3, rank_aborts)
    assert results[1] == [[], [3.0, 3.0]]
    for fates, sums in (results[0], results[2]):
        assert sums == [3.0, 3.0]
        for step, (error, message, facts, seconds) in enumerate(fates, start=1):
            assert error == "RankFailed" and seconds < 2
            assert facts["rank"] == 1 and facts["original"] == f"ValueError: bad input in step {step}"
            assert "rank 1 failed in call" in message
        # In the second failed call the group had to be made anew, and that is where they waited.
        assert [facts["collective"] for _, _, facts, _ in fates] == ["all_reduce", "connecting cpu ranks [0, 1, 2]"]


def test_an_abort_after_the_last_collective_is_seen_in_the_next_call() -> None:
    for rank, (first, second, third, last) in enumerate(run_on_ranks(3, rank_aborts_late)):
        assert (first[0], third[0], last) == ("", "", 3.0)
        assert second[0] == "RankFailed" and second[3] < 2, rank
        if rank != 1:
            assert "ValueError: late" in second[2]["original"]


@pytest.mark.parametrize("where", ["collective", "agree"])
def test_a_rank_that_dies_is_named(where: str) -> None:
    results = run_on_ranks(3, rank_dies, where, fresh=True)
    assert results[1] == Died(3)
    for error, message, facts, seconds in (results[0], results[2]):
        assert error == "RankFailed" and facts["rank"] == 1 and seconds < 5, message
        assert facts["tensor"] == ("h" if where == "collective" else "train"), message


def test_a_rank_that_dies_on_another_host_is_named_too() -> None:
    results = run_on_ranks(3, rank_is_on_another_host, fresh=True)
    for error, message, facts, seconds in (results[0], results[2]):
        assert error == "RankFailed" and facts["rank"] == 1 and 2 < seconds < 8, message
        assert facts["collective"] == "all_reduce" and facts["tensor"] == "h" and "Connection" in facts["original"], facts


def test_the_death_of_the_rank_that_hosts_the_store_is_named() -> None:
    results = run_on_ranks(2, rank_hosting_the_store_dies, fresh=True)
    error, message, facts, seconds = results[1]
    assert results[0] == Died(3) and error == "RankFailed" and facts["rank"] == 0 and seconds < 5, message


@pytest.mark.parametrize("cached", [False, True])
def test_ranks_that_call_different_programs_are_named_on_both_sides(cached: bool) -> None:
    for error, message, _, seconds, total in run_on_ranks(3, rank_calls_another_program, cached):
        assert error == "PlansDiffer" and seconds < 3, message
        assert "called 'f' and rank 2 called 'g'" in message
        assert total == 3.0


def test_a_rank_that_gloo_ends_over_a_size_is_named() -> None:
    first, second = run_on_ranks(2, rank_has_other_sizes, fresh=True)
    assert isinstance(second, Died) and first[0] == "RankFailed" and first[2]["rank"] == 1, (first, second)


def test_the_first_differing_decision_is_named() -> None:
    for error, message, _, seconds in run_on_ranks(3, rank_plans_differently):
        assert error == "PlansDiffer" and seconds < 2
        assert "decision 1 is 'all_gather h' on rank" in message and "'reduce_scatter h' on rank 2" in message


def test_a_rank_that_ran_ahead_answers_for_its_earlier_calls() -> None:
    assert run_on_ranks(2, rank_answers_for_an_earlier_call) == [[2.0], [2.0]]


def test_waits_are_bounded() -> None:
    results = run_on_ranks(3, rank_times_out, fresh=True)
    assert all(error == "RankFailed" for error, *_ in results)
    waited = [results[rank] for rank in (0, 2)]
    assert 1.5 < max(seconds for *_, seconds in waited) < 4
    for _, message, facts, _ in waited:
        assert facts["rank"] == 1 and "rank 1 did not answer within 2 s" in message


def test_a_slow_rank_is_not_a_failure() -> None:
    assert run_on_ranks(2, rank_works_for_long) == [2.0, 2.0]


def test_alone_everything_is_trivial() -> None:
    communicator = Communicator({})
    agreement = Agreement(communicator, (0,), "f", 5.0)
    assert agreement.agree(agreement.begin(), {"plan": "p"}) == {0: {"program": "f", "plan": "p"}}
    agreement.poll()
    agreement.abort(ValueError("x"))
    assert agreement.begin() == 2 and agreement.generation == 1
    assert not issubclass(PlansDiffer, ValueError)
