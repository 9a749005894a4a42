"""The shared programs on real Gloo ranks: every rank's outputs are its shards of the reference, and what the profiler sees is what was reported."""

from __future__ import annotations

import traceback
from collections import Counter

import pytest
import torch
from programs import CASES, GATHER, REDUCE, Case, Handles, Where, by_methods, ints, line, move, piece, row_linear, sequence_mlp, tensors
from rank_pool import run_on_ranks
from torch import Tensor

from interfuse import FusionDefinition
from interfuse.multidevice import Communicator, DeviceMesh, shard_tensor
from interfuse.run.comm import events
from interfuse.view.report import Report

pytestmark = pytest.mark.xdist_group("ranks")


def shards_of(fd: FusionDefinition, inputs: list[Tensor]) -> list[Tensor]:
    """This rank's inputs."""
    fd.explain(inputs)
    handles = [view for view in fd._views if view.tensor in fd.source.program.inputs]
    return [shard_tensor(tensor, handle) for tensor, handle in zip(inputs, handles, strict=True)]


def reported_events(report: Report, compared: bool) -> Counter[str]:
    """What the profiler must see for the collectives of a report. `compared`: each team first compares plans."""
    total = Counter({"gloo:all_to_all": len({c.axis for c in report.collectives})} if compared and report.collectives else {})
    for c in report.collectives:
        size = len(c.team)
        sent = int(c.bytes) + int(c.padding)
        total += events("cpu", c.kind, size, sent * size // (size - 1) // (2 if c.kind == "all_reduce" else 1), torch.float32)
    return total


def profiled(fd: FusionDefinition, local: list[Tensor]) -> tuple[list[Tensor], Counter[str]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        outs = fd.execute(local)
    return outs, Counter({event.key: event.count for event in profiler.key_averages() if event.key.startswith("gloo:")})


def problems_of(case: Case, under_profiler: bool = True) -> list[str]:
    """One case on this rank: a first call, a cached one (under the profiler, if asked), and one with inputs in other strides."""
    rank, fd, inputs = Communicator.instance().rank(), case.make(), case.inputs()
    local = shards_of(fd, inputs)
    strided = [x.t().contiguous().t() if x.ndim == 2 else x for x in local]
    first = fd.execute(local)
    cached, seen = profiled(fd, local) if under_profiler else (fd.execute(local), None)
    (bound,) = fd._calls.bound.values()
    again, report = fd.execute(strided), fd.explain(inputs)
    found = []
    for call, outs in (("first", first), ("cached", cached), ("strided", again)):
        if len(outs) != len(case.splits):
            found.append(f"{call} call: {len(outs)} outputs")
        for i, (out, wanted, where) in enumerate(zip(outs, case.wanted(), case.splits, strict=False)):
            shard = piece(wanted, case.mesh, where, rank)
            if (out.dtype, out.shape) != (shard.dtype, shard.shape) or not torch.equal(out, shard):
                found.append(f"{call} call, output {i}: {out.dtype} {out.tolist()}, not {shard.dtype} {shard.tolist()}")
    if seen is not None and seen != reported_events(report, bound.agreement.fingerprint is not None):
        found.append(f"the profiler saw {dict(seen)}, the report says {[(c.kind, c.axis) for c in report.collectives]}")
    if [(c.kind, c.axis) for c in report.collectives] != case.collectives:
        found.append(f"reported {[(c.kind, c.axis) for c in report.collectives]}, not {case.collectives}")
    return found


def rank_runs(names: list[str]) -> dict[str, list[str]]:
    found = {}
    for i, name in enumerate(names):
        try:
            found[name] = problems_of(CASES[name], under_profiler=i % 4 == 0)
        except Exception:
            found[name] = [traceback.format_exc(limit=-3)]
    return {name: problems for name, problems in found.items() if problems}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_gets_its_shards(size: int) -> None:
    names = [name for name, case in CASES.items() if case.mesh.size == size and case.style == "methods"]  # styles give the same plans: test_cache.py
    assert len(names) > 100
    assert run_on_ranks(size, rank_runs, names, timeout_s=240) == [{}] * size


# ---- beyond the shared list --------------------------------------------------------------------------------------------------------------------


def rank_runs_large(which: int) -> list[str]:
    """Tensors beyond the bounds under which Gloo's collectives all look alike to the profiler, in a process that knows no other plan."""
    mesh, n = line(2), 1 << 19

    def rows(fd: FusionDefinition) -> Handles:
        x, w = fd.define_tensor([512, 6]), fd.define_tensor([600, 6])
        y = fd.ops.linear(x, w, None)
        fd.add_output(y)
        return x, w, y

    reduce = Case("large reduce", mesh, rows, [{1: "x"}, {1: "x"}, {"r": "x"}], tensors((512, 6), (600, 6)), torch.nn.functional.linear, (REDUCE,))
    return problems_of((move(mesh, [n], {0: "x"}, {}, [GATHER]), reduce)[which])


@pytest.mark.parametrize("which", [0, 1])
def test_profiler_tells_large_collectives_apart(which: int) -> None:
    assert run_on_ranks(2, rank_runs_large, which, fresh=True) == [[], []]


def rank_is_outside() -> list[list[float]]:
    """A mesh of ranks 2 and 0, in that order, in a world of three."""
    mesh, x = DeviceMesh([2, 0]), torch.arange(10.0)
    with FusionDefinition() as fd:
        tv = fd.define_tensor([10])
        out = fd.ops.neg(tv)
        fd.add_output(out)
        fd.add_output(fd.ops.set(tv))
        by_methods(tv, mesh, {0: "x"})
        out.set_device_mesh(mesh)
    return [t.tolist() for _ in range(2) for t in fd.execute([shard_tensor(x, tv)])]


def test_ranks_outside_the_mesh_skip() -> None:
    whole, low, high = (-torch.arange(10.0)).tolist(), [0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0]
    assert run_on_ranks(3, rank_is_outside) == [[whole, high] * 2, [], [whole, low] * 2]


def rank_gives_global_sizes() -> list[list[float]]:
    """A symbolic split dim of 7 over 3 ranks, and then of 6, by the same definition."""
    with FusionDefinition() as fd:
        tv = fd.define_tensor([-1, 2])
        out = fd.ops.sum(tv, [0])
        fd.add_output(out)
        by_methods(tv, line(3), {0: "x"})
    results = []
    for n in (7, 6, 7):
        x = ints((n, 2), n)
        (out_,) = fd.execute([shard_tensor(x, tv)], global_sizes=[(n, 2)])
        assert torch.equal(out_, x.sum(0)), (n, out_, x.sum(0))
        results.append(out_.tolist())
    return results


def test_global_sizes_make_uneven_symbolic_shards_legal() -> None:
    results = run_on_ranks(3, rank_gives_global_sizes)
    assert results[0] == results[1] == results[2] and len(results[0]) == 3


def rank_alternates() -> int:
    """Two programs and two sizes in turn: cached plans find each other again."""
    a, b = row_linear(2), sequence_mlp(2)
    fa, fb = a.make(), b.make()
    la, lb = shards_of(fa, a.inputs()), shards_of(fb, b.inputs())
    for _ in range(20):
        assert torch.equal(fa.execute(la)[0], a.wanted()[0])
        assert torch.equal(fb.execute(lb)[0], piece(b.wanted()[0], b.mesh, {0: "x"}, Communicator.instance().rank()))
    return len(fa._calls.bound)


def test_programs_take_turns() -> None:
    assert run_on_ranks(2, rank_alternates) == [1, 1]


def rank_has_its_own_group() -> list[float]:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    case = sequence_mlp(2)
    fd = case.make()
    (out,) = fd.execute(shards_of(fd, case.inputs()))
    assert torch.equal(out, piece(case.wanted()[0], case.mesh, {0: "x"}, dist.get_rank()))
    total = torch.ones(1)
    dist.all_reduce(total)
    (out,) = fd.execute(shards_of(fd, case.inputs()))
    dist.destroy_process_group()
    return total.tolist()


def test_inside_a_process_group_that_the_user_made() -> None:
    assert run_on_ranks(2, rank_has_its_own_group, fresh=True) == [[2.0], [2.0]]


def rank_without_codegen(names: list[str]) -> list[str]:
    found = []
    for name in names:
        case = CASES[name]
        fd = case.make()
        local = shards_of(fd, case.inputs())
        for out, wanted, where in zip(fd.execute(local, _disable_options=["codegen"]), case.wanted(), case.splits, strict=True):
            if not torch.equal(out, piece(wanted, case.mesh, where, Communicator.instance().rank())):
                found.append(name)
    return found


def test_kernels_through_aten_give_the_same() -> None:
    names = [name for name, case in CASES.items() if case.mesh == line(3) and not name.startswith(("mean", "var_mean"))][::4]
    assert run_on_ranks(3, rank_without_codegen, names) == [[]] * 3


def test_shards_are_cut_by_the_ceil_rule() -> None:
    """The helper of these tests against torch.chunk."""
    for n in range(1, 9):
        for d in (2, 3, 4):
            whole: Tensor = torch.arange(n)
            where: Where = {0: "x"}
            chunks = list(whole.chunk(d)) + [whole[:0]] * d
            assert all(torch.equal(piece(whole, line(d), where, rank), chunks[rank]) for rank in range(d))
