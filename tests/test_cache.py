"""Plans are kept under everything that matters: equal definitions with other schedules, sizes, options or meshes are other entries."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from programs import CASES, Case, Where, line, linear_scatter, piece
from rank_pool import run_on_ranks

from interfuse import FusionDefinition
from interfuse.multidevice import Communicator, DeviceMesh, shard_tensor

KINDS = ["all_reduce", "reduce_scatter", "all_gather"]
SPLITS: dict[str, Where] = {"all_reduce": {}, "reduce_scatter": {1: "x"}, "all_gather": {}}


def scheduled(kind: str, style: str, d: int = 2) -> Case:
    """One definition, [3, 5d, 7d] × [7, 7d], and three schedules: partial sums reduced, scattered, or rows computed apart and gathered."""
    where: list[Where | None] = {
        "all_reduce": [{2: "x"}, {1: "x"}, {}],
        "reduce_scatter": [{2: "x"}, {1: "x"}, {1: "x"}],
        "all_gather": [{1: "x"}, {}, {}],
    }[kind]  # type: ignore[assignment]
    return replace(linear_scatter(d, bias=False), where=where, issues=((kind, "x"),), splits=(SPLITS[kind],), style=style)


def definition_text(fd: FusionDefinition) -> str:
    return "".join(row for row in repr(fd).splitlines(keepends=True) if " = fd." in row or "add_output" in row)


@pytest.mark.parametrize("style", ["methods", "class", "torch"])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 1, 2, 0]], ids=str)
def test_equal_definitions_with_other_schedules_have_plans_of_their_own(order: list[int], style: str) -> None:
    cases = [scheduled(KINDS[i], style) for i in order]
    made = [case.make() for case in cases]
    keys = []
    for _ in range(2):
        for case, fd in zip(cases, made, strict=True):
            (out,) = fd.simulate(case.inputs())
            assert torch.equal(out, case.wanted()[0])
            report = fd.explain()
            assert [(c.kind, c.axis) for c in report.collectives] == case.collectives
            keys.append(report.plan.key)
    assert len({definition_text(fd) for fd in made}) == 1
    assert len(set(keys)) == len(set(order)) == 3


def test_equal_definitions_and_schedules_share_a_plan() -> None:
    case = scheduled("reduce_scatter", "methods")
    first, second = (case.make().explain(case.inputs()).plan for _ in range(2))
    assert first is second


def test_what_is_spelled_differently_and_means_the_same() -> None:
    """Keys may differ, what is emitted may not."""
    texts = set()
    for style in ("methods", "class", "torch"):
        case = scheduled("reduce_scatter", style)
        texts.add("".join(case.make().explain(case.inputs()).source("host").splitlines(keepends=True)[1:]))
    assert len(texts) == 1


def test_sizes_options_and_meshes_are_part_of_the_key() -> None:
    case = CASES["row linear 6, both, methods on 2"]
    x, w = case.inputs()
    fd = case.make()
    keys = [
        fd.explain([x, w]).plan.key,
        fd.explain([torch.cat([x, x]), w]).plan.key,
        fd.explain([x, w], _disable_options=["codegen"]).plan.key,
        fd.explain([x, w], strict=True).plan.key,
        replace(case, mesh=DeviceMesh([1, 0])).make().explain([x, w]).plan.key,
        replace(case, mesh=DeviceMesh([0, 1], names=("x",))).make().explain([x, w]).plan.key,
    ]
    assert len(set(keys[:5])) == 5 and keys[5] == keys[0]


def test_sizes_come_and_go() -> None:
    """One definition with symbolic sizes: larger, smaller, empty, and the first again."""
    fd = CASES["set [8] symbolic {0: 'x'} to {}, methods on [0, 1]"].make()
    for n in (8, 1, 5, 0, 8, 3):
        x = torch.arange(float(n)) - 3
        (out,) = fd.simulate([x])
        assert torch.equal(out, x), n


def test_bad_input_leaves_the_cache_alone() -> None:
    case = CASES["row linear 6, both, methods on 2"]
    fd, (x, w) = case.make(), case.inputs()
    for _ in range(2):
        assert torch.equal(fd.simulate([x, w])[0], case.wanted()[0])
        for bad in ([x], [x, w.float()], [x[0], w], [x, w[:, :-1]]):
            with pytest.raises(RuntimeError):
                fd.simulate(bad)


def rank_calls_both(order: list[int]) -> list[list[str]]:
    rank, kinds = Communicator.instance().rank(), []
    for i in order:
        case = scheduled(KINDS[i], "methods")
        fd, inputs = case.make(), case.inputs()
        fd.explain(inputs)
        handles = [view for view in fd._views if view.tensor in fd.source.program.inputs]
        local = [shard_tensor(x, view) for x, view in zip(inputs, handles, strict=True)]
        for _ in range(2):
            (out,) = fd.execute(local)
            assert torch.equal(out, piece(case.wanted()[0], line(2), SPLITS[KINDS[i]], rank))
        kinds.append([c.kind for c in fd.explain(inputs).collectives])
    return kinds


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]], ids=str)
def test_on_ranks_too(order: list[int]) -> None:
    assert run_on_ranks(2, rank_calls_both, order, fresh=True) == [[[KINDS[i]] for i in order]] * 2
