"""Every example runs in one process and on real ranks, one of them under torchrun itself."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from rank_pool import run_on_ranks

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_runs_in_one_process(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path))["main"]()
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
@pytest.mark.xdist_group("ranks")
def test_runs_on_real_ranks(path: Path) -> None:
    assert run_on_ranks(3, run_main, str(path)) == [None] * 3


def run_main(path: str) -> None:
    with redirect_stdout(io.StringIO()):
        runpy.run_path(path)["main"]()


@pytest.mark.xdist_group("ranks")
def test_runs_under_torchrun() -> None:
    path = next(p for p in EXAMPLES if p.stem == "sequence_parallel_mlp")
    environ = {name: value for name, value in os.environ.items() if name not in JOB}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
