"""`repr(fd)` rebuilds every shared program; plans are the same in other processes, under other hash seeds, and from every rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from programs import CASES

TESTS = Path(__file__).parent
NAMES = list(CASES)

OURS = """
import json, sys
from programs import CASES
facts = {}
for name in json.load(sys.stdin):
    case = CASES[name]
    plan = case.make().explain(case.inputs()).plan
    facts[name] = [plan.key, plan.digest]
print(json.dumps(facts))
"""

REBUILT = """
import json, sys, torch
from interfuse import FusionDefinition
facts = {}
for name, (text, inputs) in json.load(sys.stdin).items():
    names = {}
    exec(text, names)
    with FusionDefinition() as fd:
        names["program"](fd)
    plan = fd.explain([torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in inputs]).plan
    facts[name] = [plan.key, plan.digest, repr(fd) == text]
print(json.dumps(facts))
"""


def child(script: str, data: Any, **environ: str) -> dict[str, Any]:
    """What a new process prints."""
    env = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "INTERFUSE_CHECK": "0", **environ}
    done = subprocess.run([sys.executable, "-c", script], input=json.dumps(data), capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@cache
def plans() -> dict[str, tuple[str, list[tuple[list[int], str]], list[str]]]:
    """Text, input facts, and plan hashes of every case, made in this process."""
    result = {}
    for name in NAMES:
        case = CASES[name]
        fd, inputs = case.make(), case.inputs()
        plan = fd.explain(inputs).plan
        result[name] = repr(fd), [(list(x.shape), str(x.dtype).removeprefix("torch.")) for x in inputs], [plan.key, plan.digest]
    return result


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [name for name in wanted if found[name] != wanted[name]]


def test_repr_rebuilds_the_same_plan_in_a_new_process() -> None:
    found = child(REBUILT, {name: (text, inputs) for name, (text, inputs, _) in plans().items()})
    assert differing(found, {name: [*hashes, True] for name, (*_, hashes) in plans().items()}) == []


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"])
def test_plans_do_not_depend_on_the_hash_seed(seed: str) -> None:
    found = child(OURS, NAMES, PYTHONHASHSEED=seed)
    assert differing(found, {name: plans()[name][2] for name in NAMES}) == []


def test_plans_do_not_depend_on_the_rank_that_compiles() -> None:
    """Placed, local and emitted forms are compiled anew for each rank that asks."""
    for name in NAMES[::7]:
        case = CASES[name]
        inputs, ranks = case.inputs(), case.mesh.ranks
        texts = {case.make().explain(inputs, rank=rank, stop="emit").form("emitted") for rank in (ranks[0], ranks[-1], ranks[len(ranks) // 2])}
        assert len(texts) == 1, name


@pytest.mark.parametrize(
    "environ", [{"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1"}, {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}], ids=str
)
def test_plans_do_not_depend_on_the_process(environ: dict[str, str]) -> None:
    names = [name for name in NAMES if CASES[name].mesh.size == 3][::5]
    found = child(OURS, names, MASTER_ADDR="localhost", MASTER_PORT="1", **environ)
    assert differing(found, {name: plans()[name][2] for name in names}) == []


def test_plans_differ_where_programs_do() -> None:
    """What two programs can have in common is told apart: the hashes are no constants."""
    keys = [tuple(hashes) for *_, hashes in plans().values()]
    texts = [(text, tuple(map(str, inputs))) for text, inputs, _ in plans().values()]
    assert len({key for key, _ in keys}) > 300
    by_key: dict[str, set[str]] = {}
    for (key, digest), _ in zip(keys, texts, strict=True):
        by_key.setdefault(key, set()).add(digest)
    assert all(len(digests) == 1 for digests in by_key.values())


def test_repr_is_readable() -> None:
    text = repr(CASES["linear scatter 10 14 bias, methods on 2"].make())
    assert "def program(fd: FusionDefinition) -> None:" in text and "fd.ops.linear(tv0, tv1, tv2)" in text
    assert "DeviceMesh([0, 1])" in text and "ParallelType.mesh_x" in text
