"""Collectives, on threads and on real Gloo ranks: the same values from both, and errors in place of hangs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_pool import run_on_ranks
from torch import Tensor

from interfuse.errors import PlansDiffer, RankFailed
from interfuse.run import comm as real
from interfuse.run.agree import Agreement
from interfuse.run.comm import Comm, events
from interfuse.run.communicator import Communicator
from interfuse.run.local_comm import LocalComm, LocalWorld

ranks = pytest.mark.xdist_group("ranks")

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool)
OPS = ("sum", "prod", "min", "max")
REDUCING = ("reduce_scatter", "all_reduce")
KINDS = ("all_gather", "all_to_all", *REDUCING)
LARGE = 300_001  # elements a rank: beyond every bound below which Gloo sends everything to everyone, and odd


def data(rank: int, rows: int, dtype: torch.dtype) -> Tensor:
    """[rows, 3], different on each rank, with values that sums and products of four ranks represent well enough."""
    values = torch.randint(-2, 3, (rows, 3), generator=torch.Generator().manual_seed(rank + 10 * rows))
    return (values + (0.25 if dtype.is_floating_point else 0)).to(dtype)


def collect(comm: Any, ranks: tuple[int, ...], kind: str, op: str, rows: int, dtype: torch.dtype) -> Tensor:
    """One collective with `rows` rows a chunk, waited for; the local result."""
    team, own = comm.team(ranks), data(comm.rank, rows * len(ranks), dtype)
    match kind:
        case "all_gather":
            out = torch.empty(rows * len(ranks), 3, dtype=dtype)
            team.all_gather(out, data(comm.rank, rows, dtype), tensor="t").wait()
        case "all_to_all":
            out = torch.empty_like(own)
            team.all_to_all(out, own, tensor="t").wait()
        case "reduce_scatter":
            out = torch.empty(rows, 3, dtype=dtype)
            team.reduce_scatter(out, own, op, tensor="t").wait()
        case "all_reduce":
            out = own
            team.all_reduce(out, op, tensor="t").wait()
    return out


def expected(rank: int, ranks: tuple[int, ...], kind: str, op: str, rows: int, dtype: torch.dtype) -> Tensor:
    """What `collect` should give, said without collectives."""
    index, size = ranks.index(rank), len(ranks)
    if kind == "all_gather":
        return torch.cat([data(other, rows, dtype) for other in ranks])
    whole = [data(other, rows * size, dtype) for other in ranks]
    mine = slice(index * rows, (index + 1) * rows)
    if kind == "all_to_all":
        return torch.cat([other[mine] for other in whole])
    wide = torch.stack(whole).to(torch.float64 if dtype.is_floating_point else torch.int64)
    total = {"sum": wide.sum(0), "prod": wide.prod(0), "min": wide.amin(0), "max": wide.amax(0)}[op].to(dtype)
    return total[mine] if kind == "reduce_scatter" else total


def cases(kinds: tuple[str, ...] = KINDS) -> list[tuple[str, str]]:
    return [(kind, op) for kind in kinds for op in (OPS if kind in REDUCING else ("",))]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_compute_every_collective(kind: str, size: int) -> None:
    ranks = tuple(range(size))[::-1]
    for (_, op), dtype, rows in itertools.product(cases((kind,)), DTYPES, (0, 1, 5)):
        results = LocalWorld(range(size)).run(lambda comm: collect(comm, ranks, kind, op, rows, dtype))  # noqa: B023
        for rank, result in enumerate(results):
            torch.testing.assert_close(result, expected(rank, ranks, kind, op, rows, dtype))


def real_comm(members: tuple[int, ...] | None = None, program: str = "test", timeout_s: float = 20.0) -> Comm:
    """A `Comm` over the world of this pool process, in a begun call."""
    communicator = Communicator.instance()
    members = tuple(range(communicator.size())) if members is None else members
    watch = Agreement(communicator, members, program, timeout_s)
    watch.begin()
    return Comm(communicator, members, watch)


def rank_runs_every_collective() -> int:
    """On each rank: all collectives × ops × dtypes × sizes, against `expected` and bit for bit against threads."""
    comm, count = real_comm(), 0
    ranks = comm.members[::-1]
    for (kind, op), dtype, rows in itertools.product(cases(), DTYPES, (0, 1, 700)):
        result = collect(comm, ranks, kind, op, rows, dtype)
        right = expected(comm.rank, ranks, kind, op, rows, dtype)
        torch.testing.assert_close(result, right, msg=lambda text: f"{kind} {op} {dtype} {rows}: {text}")  # noqa: B023
        if rows == 1:
            local = LocalWorld(ranks).run(lambda local_comm: collect(local_comm, ranks, kind, op, rows, dtype))  # noqa: B023
            assert torch.equal(result, local[ranks.index(comm.rank)]), (kind, op, dtype)
        count += 1
    return count


def rank_runs_large_collectives() -> None:
    """The forms for large tensors, and for a buffer that the ranks do not divide."""
    comm = real_comm()
    for kind, dtype in itertools.product(KINDS, (torch.float32, torch.bfloat16, torch.bool)):
        result = collect(comm, comm.members, kind, "sum", LARGE // 3, dtype)
        torch.testing.assert_close(result, expected(comm.rank, comm.members, kind, "sum", LARGE // 3, dtype))
    odd = torch.full((LARGE,), 1 + 2**-7, dtype=torch.bfloat16)
    comm.team(comm.members).all_reduce(odd, "sum").wait()
    assert (odd == torch.tensor(len(comm.members) * (1 + 2**-7), dtype=torch.bfloat16)).all()


def rank_overlaps_collectives() -> None:
    """Several in flight on two teams, waited for late, and scratch not shared between them."""
    comm = real_comm()
    whole, pair = comm.team(comm.members), comm.team(tuple(sorted({comm.rank, comm.rank ^ 1})))
    buffers = [torch.full((50_000,), float(10**i), dtype=dtype) for i, dtype in enumerate((torch.float32, torch.float64, torch.bfloat16))]
    works = [team.all_reduce(buffer, "sum") for buffer, team in zip(buffers, (whole, pair, whole), strict=True)]
    for work in works[::-1]:
        work.wait()
        work.wait()
    size = len(comm.members)
    assert [buffer.unique().tolist() for buffer in buffers] == [[size], [20.0], [size * 100.0]]


def rank_counts_events() -> None:
    from torch.profiler import ProfilerActivity, profile

    comm = real_comm()
    size = len(comm.members)
    for kind, dtype, rows in itertools.product(KINDS, (torch.float32, torch.bfloat16), (1, LARGE // 3)):
        collect(comm, comm.members, kind, "sum", rows, dtype)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            collect(comm, comm.members, kind, "sum", rows, dtype)
        seen = Counter({event.key: event.count for event in profiler.key_averages() if event.key.startswith("gloo:")})
        assert seen == events("cpu", kind, size, 3 * rows * size * dtype.itemsize, dtype), (kind, dtype, rows)


@ranks
@pytest.mark.parametrize("size", [2, 4])
def test_gloo_computes_every_collective(size: int) -> None:
    assert run_on_ranks(size, rank_runs_every_collective) == [10 * 7 * 3] * size


@ranks
def test_gloo_forms_for_large_tensors() -> None:
    run_on_ranks(3, rank_runs_large_collectives)


@ranks
def test_collectives_overlap() -> None:
    run_on_ranks(4, rank_overlaps_collectives)


@ranks
def test_profiler_sees_the_events_that_are_declared() -> None:
    run_on_ranks(3, rank_counts_events)


def test_a_team_of_one_needs_no_group() -> None:
    communicator = Communicator({})
    comm = Comm(communicator, (0,), Agreement(communicator, (0,), "test", 5.0))
    for (kind, op), dtype in itertools.product(cases(), DTYPES):
        assert torch.equal(collect(comm, (0,), kind, op, 4, dtype), expected(0, (0,), kind, op, 4, dtype))
    assert communicator.groups == {} and events("cpu", "all_reduce", 1, 4, torch.float32) == Counter()


def run_threads(size: int, fn: Callable[[LocalComm], None], error: type[Exception], text: str) -> Exception:
    with pytest.raises(error, match=text) as caught:
        LocalWorld(range(size)).run(fn)
    return caught.value


def test_threads_that_issue_different_collectives_are_named() -> None:
    def differ(comm: LocalComm) -> None:
        collect(comm, (0, 1), "all_gather" if comm.rank else "all_to_all", "", 2, torch.float32)

    run_threads(2, differ, PlansDiffer, "collective 1 of ranks .0, 1.: rank . issues .* rank . issues ")

    def sizes_differ(comm: LocalComm) -> None:
        comm.team((0, 1)).all_reduce(torch.ones(2 + comm.rank), "sum", tensor="loss").wait()

    run_threads(2, sizes_differ, PlansDiffer, r"all_reduce \(sum\) of loss, float32 \[.\].*all_reduce")


def test_a_collective_that_one_thread_leaves_out_is_a_deadlock() -> None:
    def leave_out(comm: LocalComm) -> None:
        if comm.rank != 1:
            collect(comm, (0, 1, 2), "all_reduce", "sum", 2, torch.float32)

    text = r"rank 0 waits in all_reduce of t over ranks \[0, 1, 2\] for rank 1; rank 2 waits .*rank 1 finished"
    error = run_threads(3, leave_out, RankFailed, text)
    assert error.rank == 1 and error.collective == "all_reduce" and error.tensor == "t"


def test_threads_that_wait_for_each_other_are_a_deadlock() -> None:
    def cross(comm: LocalComm) -> None:
        collect(comm, ((0, 1), (1, 2), (2, 0))[comm.rank], "all_gather", "", 2, torch.float32)

    run_threads(3, cross, RankFailed, "deadlock: rank 0 waits .* for rank 1; rank 1 waits .* for rank 2; rank 2 waits .* for rank 0")


def test_the_first_real_error_of_a_thread_is_raised() -> None:
    def fail(comm: LocalComm) -> None:
        if comm.rank == 2:
            raise ZeroDivisionError("on purpose")
        collect(comm, (0, 1, 2), "all_gather", "", 2, torch.float32)

    run_threads(3, fail, ZeroDivisionError, "on purpose")


def test_halves_accumulate_in_float32() -> None:
    parts = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    out = torch.empty(1, dtype=torch.bfloat16)
    real.reduce_in_order(parts, "sum", out)
    assert out.item() == 258.0  # bfloat16 has no 257: adding one at a time would stay at 256


def test_environment_says_who_we_are() -> None:
    alone = Communicator({})
    assert (alone.rank(), alone.size(), alone.local_rank(), alone.local_size(), alone.is_available()) == (0, 1, 0, 1, False)
    alone.barrier()
    slurm = Communicator({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4(x2)"})
    assert (slurm.rank(), slurm.size(), slurm.local_rank(), slurm.local_size(), slurm.is_available()) == (5, 8, 1, 4, True)
    both = Communicator({"RANK": "3", "WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert (both.rank(), both.size(), both.local_rank()) == (1, 2, 1)
    assert not Communicator({"RANK": "3"}).is_available()
    with pytest.raises(RankFailed, match="NVFUSER_MASTER_ADDR"):
        Communicator({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}).store()


def rank_meets_with_a_default_group() -> list[int]:
    """The communicator before, after, and beside init_process_group."""
    import torch.distributed as dist

    comm = real_comm()
    before = comm.communicator.store()
    dist.init_process_group("gloo")
    try:
        assert comm.communicator.store() is before and comm.communicator.rank() == dist.get_rank()
        comm.communicator.barrier()
        later = Communicator()
        later.barrier()
        watch = Agreement(later, comm.members, "later", 20.0)
        watch.begin()
        out = torch.empty(2, dtype=torch.int64)
        Comm(later, comm.members, watch).team(comm.members).all_gather(out, torch.tensor([later.rank()])).wait()
    finally:
        dist.destroy_process_group()
    return out.tolist()


@ranks
def test_works_before_and_after_init_process_group() -> None:
    assert run_on_ranks(2, rank_meets_with_a_default_group, fresh=True) == [[0, 1], [0, 1]]


def rank_is_started_by_nvfuser_variables(port: int) -> int:
    import os

    del os.environ["MASTER_ADDR"]
    os.environ.update(NVFUSER_MASTER_PORT=str(port))
    comm = real_comm()
    return int(collect(comm, comm.members, "all_reduce", "sum", 1, torch.int64).sum())


@ranks
def test_nvfuser_variables_are_enough() -> None:
    import rank_pool

    results = run_on_ranks(2, rank_is_started_by_nvfuser_variables, rank_pool._free_port(), fresh=True)
    assert results[0] == results[1]
