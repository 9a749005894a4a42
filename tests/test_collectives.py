"""Every shared program in `simulate`: right to the last bit, with exactly the collectives that it may issue, among the right ranks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from programs import (
    CASES,
    F32,
    GRIDS,
    REDUCE,
    SIZES,
    Case,
    Handles,
    Where,
    by_methods,
    gated_norm_ffn,
    ints,
    line,
    linear_scatter,
    mesh_mlp,
    move,
    row_linear,
    sequence_mlp,
    tensors,
)

from interfuse import FusionDefinition
from interfuse.multidevice import DeviceMesh
from interfuse.shard.placement import Placement, Split, place
from interfuse.view.report import Report


def issued(report: Report) -> list[tuple[str, str]]:
    return [(c.kind, c.axis) for c in report.collectives]


def expected_placement(case: Case, where: Where, ndim: int) -> Placement:
    dims: list[list[Split]] = [[] for _ in range(ndim)]
    for dim, axis in where.items():
        dims[dim].append(Split(axis))
    return place(case.mesh, dims)


def check(case: Case) -> Report:
    """Values, types, shapes, collectives, and where outputs lie."""
    fd, inputs = case.make(), case.inputs()
    report = fd.explain(inputs)
    for out, wanted in zip(fd.simulate(inputs), case.wanted(), strict=True):
        assert (out.dtype, out.shape) == (wanted.dtype, wanted.shape), report
        assert torch.equal(out, wanted), report
    assert issued(report) == case.collectives, report
    outputs = report.plan.local.program.outputs
    for out, where in zip(outputs, case.splits, strict=True):
        assert report.plan.local.placement[out] == expected_placement(case, where, out.ndim), report
    return report


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_right_and_issues_what_it_may(name: str) -> None:
    check(CASES[name])


def test_nothing_shared_is_the_same_on_all_sizes() -> None:
    """The list itself: each number of ranks has programs with and without collectives, of each kind."""
    for d in SIZES[1:]:
        kinds = {kind for case in CASES.values() if case.mesh == line(d) for kind, _ in case.collectives}
        assert kinds == {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}
    assert not any(case.collectives for case in CASES.values() if case.mesh.size == 1)


@pytest.mark.parametrize("ranks", GRIDS, ids=str)
@pytest.mark.parametrize("sequence", [False, True])
def test_teams_are_the_ranks_along_the_axis(ranks: list[list[int]], sequence: bool) -> None:
    case = mesh_mlp(ranks, sequence)
    fd, inputs = case.make(), case.inputs()
    for row in ranks:
        for rank in row:
            report = fd.explain(inputs, rank=rank)
            assert [c.team for c in report.collectives] == [tuple(row)] * len(case.collectives)
            assert {c.axis for c in report.collectives} == ({"tp"} if len(row) > 1 else set())


@pytest.mark.parametrize("ranks", [[[1, 0], [3, 2]], [[5, 3, 1], [0, 2, 4]], [[7, 2], [4, 9]]], ids=str)
def test_teams_of_the_slow_axis_are_columns(ranks: list[list[int]]) -> None:
    mesh = DeviceMesh(ranks)
    y, x = mesh.shape
    case = move(mesh, [3 * y, 2 * x], {0: "y", 1: "x"}, {1: "x"}, [("all_gather", "y")])
    check(case)
    fd = case.make()
    for i, j in itertools.product(range(y), range(x)):
        (record,) = fd.explain(case.inputs(), rank=ranks[i][j]).collectives
        assert record.team == tuple(row[j] for row in ranks) and record.axis == "y"


@pytest.mark.parametrize("ranks", [[2, 0, 1], [3, 1], [9, 4, 6, 2]], ids=str)
def test_order_and_choice_of_ranks_do_not_change_results(ranks: list[int]) -> None:
    d, mesh = len(ranks), DeviceMesh(ranks)
    for before, after, kind in (({0: "x"}, {}, "all_gather"), ({0: "x"}, {1: "x"}, "all_to_all")):
        report = check(move(mesh, [d + 2, 2 * d + 1], before, after, [(kind, "x")]))
        assert [c.team for c in report.collectives] == [tuple(ranks)] and report.rank == (0 if 0 in ranks else ranks[0])


def test_inner_dims_are_permuted_inside_kernels() -> None:
    """One all-gather; what goes into it or comes out of it is reordered by generated code, not by ATen."""
    case = move(line(3), [5, 12], {1: "x"}, {}, [("all_gather", "x")])
    report = check(case)
    assert {s.kind for s in report.segments} <= {"kernel", "collective", "view"}
    assert any(s.kind == "kernel" and s.has_compiled_kernel for s in report.segments)
    assert not any(word in report.source("host") for word in (".permute(", ".transpose(", ".t()", ".clone("))


def test_bytes_on_the_wire() -> None:
    """(d−1)/d of the whole for all-gather, reduce-scatter and all-to-all (there: of a rank's own), twice that for all-reduce."""
    d, total = 4, 4 * 8 * 12 * 4
    mesh = line(d)
    gather = move(mesh, [32, 12], {0: "x"}, {}, [])
    exchange = move(mesh, [32, 12], {0: "x"}, {1: "x"}, [])
    assert [c.bytes for c in gather.make().explain(gather.inputs()).collectives] == [total * 3 // 4]
    assert [c.bytes for c in exchange.make().explain(exchange.inputs()).collectives] == [total // 4 * 3 // 4]
    rows, scatter = row_linear(d, rows=8), linear_scatter(d)
    assert [c.bytes for c in rows.make().explain(rows.inputs()).collectives] == [2 * (8 * 4 * 2) * 3 // 4]
    assert [c.bytes for c in scatter.make().explain(scatter.inputs()).collectives] == [3 * 5 * d * 7 * 2 * 3 // 4]
    for record in (c for case in (gather, exchange, rows, scatter) for c in case.make().explain(case.inputs()).collectives):
        assert record.count == 1 and record.padding == 0 and record.tensor


def test_padding_is_shown_apart() -> None:
    """5 rows over 4 ranks are 2, 2, 1, 0."""
    case = move(line(4), [5, 3], {0: "x"}, {}, [("all_gather", "x")])
    fd = case.make()
    records = [fd.explain(case.inputs(), rank=rank).collectives[0] for rank in range(4)]
    assert all(isinstance(r.bytes, int) and isinstance(r.padding, int) for r in records)
    assert any(r.padding > 0 for r in records) and all(0 <= r.padding <= 3 * 12 * 4 for r in records)


# ---- one definition, several schedules: see also test_cache.py ---------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 3, 4])
def test_the_residual_pulls_the_projection_towards_reduce_scatter(d: int) -> None:
    """With the residual split the linear's partial sums are scattered; with it whole they are reduced. Nobody placed the linear's output."""
    for case, kinds in ((sequence_mlp(d), ["all_gather", "reduce_scatter"]), (sequence_mlp(d, apart=True), ["all_gather", "reduce_scatter"])):
        assert [kind for kind, _ in issued(check(case))] == kinds
    whole = sequence_mlp(d)
    loose = Case("whole tokens", whole.mesh, whole.define, [{}, *whole.where[1:]], whole.inputs, whole.reference, (REDUCE,))
    assert issued(check(loose)) == [REDUCE]


def test_a_bias_is_added_once_and_after_the_reduction() -> None:
    """A bias that dwarfs the products: added on every rank it would be d-fold; added before rounding it would be lost."""

    def define(fd: FusionDefinition) -> Handles:
        x, w, b = fd.define_tensor([2, 6], dtype=F32), fd.define_tensor([3, 6], dtype=F32), fd.define_tensor([3], dtype=F32)
        fd.add_output(fd.ops.linear(x, w, b))
        return x, w

    def inputs() -> list[torch.Tensor]:
        return [ints((2, 6), 1), ints((3, 6), 2), torch.tensor([1000.0, -3000.0, 7.0])]

    case = Case("bias", line(3), define, [{1: "x"}, {1: "x"}], inputs, torch.nn.functional.linear, (REDUCE,))
    check(case)


def test_norm_ffn_is_close_and_fuses() -> None:
    """At most two kernels up to the second linear: the whole of rmsnorm, and gelu with its bias."""
    for d in (1, 2, 4):
        case = gated_norm_ffn(d)
        fd, inputs = case.make(), case.inputs()
        (out,), (wanted,) = fd.simulate(inputs), case.wanted()
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
        report = fd.explain(inputs)
        assert issued(report) == case.collectives
        kinds = [(s.kind, s.template) for s in report.segments if s.kind != "view"]
        second = [i for i, (kind, _) in enumerate(kinds) if kind == "library"][1]
        kernels = [template for kind, template in kinds[:second] if kind == "kernel"]
        assert kernels == ["normalization", "pointwise"], report
        assert sum(kind == "kernel" for kind, _ in kinds) <= 3, report


@pytest.mark.parametrize("d", [2, 3])
def test_local_numbers_of_a_row_that_nobody_split(d: int) -> None:
    """Sizes as `size()` gives them are global, whatever a rank holds."""

    def define(fd: FusionDefinition) -> Handles:
        x = fd.define_tensor([7, 3])
        fd.add_output(fd.ops.mul(x, x.size(0)))
        fd.add_output(fd.ops.add(fd.ops.iota(x.size(0)), 1))
        return (x,)

    def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 7, torch.arange(7) + 1

    check(Case("sizes", line(d), define, [{0: "x"}], tensors((7, 3)), reference, (), ({0: "x"}, {})))


@pytest.mark.parametrize("style", ["add", "cat", "where"])
def test_operands_split_over_different_axes_meet(style: str) -> None:
    """[y, x] splits of two operands combine without a collective; a third that is whole is sliced."""
    mesh = DeviceMesh([[0, 1, 2], [3, 4, 5]])

    def define(fd: FusionDefinition) -> Handles:
        a, b, c = (fd.define_tensor([4, 6]) for _ in range(3))
        o = fd.ops
        y = {"add": lambda: o.add(o.mul(a, b), c), "cat": lambda: o.cat([o.mul(a, b), c], 1), "where": lambda: o.where(o.gt(a, b), c, a)}[style]()
        fd.add_output(y)
        return a, b, c, y

    reference: dict[str, Any] = {
        "add": lambda a, b, c: a * b + c, "cat": lambda a, b, c: torch.cat([a * b, c], 1), "where": lambda a, b, c: torch.where(a > b, c, a),
    }  # fmt: skip
    where: list[Where | None] = [{0: "y"}, {0: "y"}, {}, {0: "y", 1: "x"}]
    check(Case(style, mesh, define, where, tensors(*[(4, 6)] * 3, most=5), reference[style], (), ({0: "y", 1: "x"},)))


def test_placements_of_every_handle_are_kept() -> None:
    """Propagation changes nothing that was given."""
    fd = FusionDefinition()
    with fd:
        x, w = fd.define_tensor([6, 8]), fd.define_tensor([8, 8])
        y = fd.ops.matmul(x, w)
        z = fd.ops.relu(y)
        fd.add_output(z)
        for tensor, where in ((x, {0: "x"}), (w, {1: "x"}), (y, {1: "x"}), (z, {0: "x"})):
            by_methods(tensor, line(2), where)
    report = fd.explain()
    for tensor, dim in ((x, 0), (w, 1), (y, 1), (z, 0)):
        assert [len(splits) for splits in report.placement(tensor).dims] == [int(d == dim) for d in range(2)]
    assert issued(report) == [("all_gather", "x"), ("all_to_all", "x")]
