"""What runs is what is shown: without one of the text's collectives, or with two exchanged, `simulate` must not give the right answer."""

from __future__ import annotations

import re

import pytest
import torch
from programs import CASES, Case

from interfuse.errors import InterfuseError
from interfuse.frontend.calls import Asked
from interfuse.view.report import read_collectives

ISSUE = re.compile(r"^ *(?P<work>w_\w+) = team_\w+\.(?P<kind>\w+)\((?P<args>[^)]*)\).*\n", re.MULTILINE)
PICKED = [
    name for name, case in CASES.items()
    if case.collectives and case.mesh.size in (2, 3, 4) and not name.startswith(("mean", "var_mean"))
][::5]  # fmt: skip


def with_inputs_that_tell(case: Case) -> list[torch.Tensor]:
    """Global inputs all of whose elements are positive and differ, so that no shard, and no partial sum, can stand for another."""
    return [(torch.arange(x.numel()).reshape(x.shape) % 11 + 1 + i).to(x.dtype) for i, x in enumerate(case.inputs())]


def run(case: Case, text: str, inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """What an edited text gives; None if it does not run."""
    try:
        return case.make()._calls.simulate(inputs, Asked(), host_text=text)
    except (InterfuseError, RuntimeError, NameError):
        return None


def right(outs: list[torch.Tensor] | None, case: Case, inputs: list[torch.Tensor]) -> bool:
    wanted = case.make().simulate(inputs)
    return outs is not None and all(torch.equal(o, w) for o, w in zip(outs, wanted, strict=True))


def without(text: str, match: re.Match[str]) -> str:
    """The text with one collective deleted, its wait included; what it would have filled holds ones."""
    args = [a.strip() for a in match["args"].split(",")]
    fill = "" if match["kind"] == "all_reduce" else f"        {args[0]}.fill_(1)\n"
    cut = text[: match.start()] + fill + text[match.end() :]
    return re.sub(rf"^ *{match['work']}\.wait\(\)\n", "", cut, flags=re.MULTILINE)


@pytest.mark.parametrize("name", PICKED)
def test_a_deleted_collective_is_missed(name: str) -> None:
    case = CASES[name]
    inputs = with_inputs_that_tell(case)
    text = case.make().explain(inputs).source("host")
    matches = list(ISSUE.finditer(text))
    assert [m["kind"] for m in matches] == [kind for kind, _ in case.collectives]
    assert right(run(case, text, inputs), case, inputs)
    for match in matches:
        edited = without(text, match)
        assert match["work"] not in edited and edited != text
        assert not right(run(case, edited, inputs), case, inputs), edited


@pytest.mark.parametrize("name", [n for n in PICKED if "sum" in n or "linear" in n or "product" in n if "sum [1," not in n and " 7 1," not in n])
def test_another_reduction_gives_another_result(name: str) -> None:
    """Sums of more than one rank's values, made maxima in the text."""
    case = CASES[name]
    inputs = with_inputs_that_tell(case)
    text = case.make().explain(inputs).source("host")
    edited = text.replace('"sum"', '"max"')
    if edited == text:
        assert all(kind not in ("all_reduce", "reduce_scatter") for kind, _ in case.collectives)
        return
    assert not right(run(case, edited, inputs), case, inputs)


@pytest.mark.parametrize(
    "name", ["sequence mlp [4] 8 f32, methods on 2", "sequence mlp [6] 12 f32, methods on 3", "sequence mlp [2, 8] 16 f32, methods on 4"]
)
def test_swapped_collectives_are_noticed(name: str) -> None:
    """The two kinds exchanged: shapes do not fit, or the result is wrong."""
    case = CASES[name]
    inputs = with_inputs_that_tell(case)
    text = case.make().explain(inputs).source("host")
    first, second = ISSUE.finditer(text)
    assert (first["kind"], second["kind"]) == ("all_gather", "reduce_scatter")
    lines = [m[0] for m in (first, second)]
    swapped = text.replace(lines[0], "@A").replace(lines[1], lines[0]).replace("@A", lines[1])
    assert swapped != text and not right(run(case, swapped, inputs), case, inputs)


def test_an_exchange_turned_into_a_gather_of_own_data_is_noticed() -> None:
    """all_to_all and the identity differ on every rank but where d = 1."""
    case = CASES["set [4, 6] {0: 'x'} to {1: 'x'}, methods on [0, 1]"]
    inputs = with_inputs_that_tell(case)
    text = case.make().explain(inputs).source("host")
    (match,) = ISSUE.finditer(text)
    out, inp = [a.strip() for a in match["args"].split(",")][:2]
    edited = without(text, match).replace(f"{out}.fill_(1)", f"{out}.copy_({inp})")
    assert edited != text and not right(run(case, edited, inputs), case, inputs)


def test_the_report_is_read_off_the_text_that_simulate_runs() -> None:
    """A collective that is written twice is issued twice: the team's count of its calls says so."""
    case = CASES["row linear 6, both, methods on 2"]
    report = case.make().explain(case.inputs())
    text = report.source("host")
    (match,) = ISSUE.finditer(text)
    wait = f"        {match['work']}.wait()\n"
    doubled = text.replace(match[0], match[0] + wait + match[0])
    records = read_collectives(doubled, case.mesh, 0, report.plan.known)
    assert [c.kind for c in records] == ["all_reduce", "all_reduce"]
    inputs = with_inputs_that_tell(case)
    twice = run(case, doubled, inputs)
    assert twice is not None and torch.equal(twice[0], 2 * case.make().simulate(inputs)[0])
