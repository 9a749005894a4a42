"""The command line: what it prints, what it exits with, and that no rank outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_pool import run_on_ranks

from interfuse.cli import main
from interfuse.errors import OptionError
from interfuse.frontend import launch
from interfuse.frontend.launch import joined
from interfuse.run.communicator import Communicator
from interfuse.settings import settings
from interfuse.view import doctor, trial
from interfuse.view.demo import Sizes, by_hand, random_inputs, reference

SMALL = ["--tokens", "24", "--hidden", "32", "--ffn", "128"]  # weights large beside activations, else gathering them is cheaper
COMMAND = [sys.executable, "-m", "interfuse"]

LINEAR = """
import torch
from interfuse import DataType, FusionDefinition, ParallelType
from interfuse.multidevice import DeviceMesh

def program(fd, ranks):
    x = fd.define_tensor([-1, 8], dtype=DataType.Float)
    w = fd.define_tensor([6, -1], dtype=DataType.Float)
    y = fd.ops.relu(fd.ops.linear(x, w))
    fd.add_output(y)
    for t in (x, w):
        t.set_device_mesh(DeviceMesh(range(ranks)))
        t.outer_split(1, ranks)
        t.axis(1).parallelize(ParallelType.mesh_x)
"""
INPUTS = """
def inputs():
    return [torch.randint(-3, 4, (5, 8)).float(), torch.randint(-3, 4, (6, 8)).float()]
"""


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings.cache_clear()
    Communicator.reset()
    yield
    settings.cache_clear()


def write(folder: Path, *parts: str) -> str:
    path = folder / "program.py"
    path.write_text("\n".join(parts))
    return str(path)


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=200, check=False)


# ---- demo ---------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("ranks")
def test_demo_on_real_ranks(tmp_path: Path) -> None:
    done = ran("demo", *SMALL, "--steps", "3", "--dump", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = done.stdout
    headings = ["starting 2", "placements", "collectives", "segments", "kernels", "result against plain", "time per step", "emitted programs"]
    assert [told.index(h) for h in headings] == sorted(told.index(h) for h in headings)
    rows = [line.split() for line in told.splitlines()]
    # 24 tokens x 32 hidden x 4 bytes, of which a rank sends half
    sent = [(r[0], " ".join(r[-2:])) for r in rows if r and r[0] in ("all_gather", "reduce_scatter")]
    assert sent == [("all_gather", "1,536 bytes"), ("reduce_scatter", "1,536 bytes")]
    assert "within it" in told
    assert [r[0] for r in rows if r[:1] == ["interfuse"] and len(r) == 4] == ["interfuse"] and "PyTorch by hand" in told
    (first,), (second,) = ([p for p in (tmp_path / f"rank{rank}").iterdir()] for rank in (0, 1))
    names = sorted(p.name for p in first.iterdir())
    assert names[:7] == ["1-traced.txt", "2-placed.txt", "3-local.txt", "4-segmented.txt", "5-scheduled.txt", "6-tiled.txt", "7-host.py"]
    for name in names:  # the same text on every rank
        assert (first / name).read_text() == (second / name).read_text()
    compile((first / "7-host.py").read_text(), "7-host.py", "exec")


@pytest.mark.parametrize(("ranks", "dtype"), [("1", "float32"), ("2", "bfloat16"), ("3", "float32")])
def test_demo_simulated(ranks: str, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *SMALL, "--simulate", "--ranks", ranks, "--dtype", dtype, "--dump", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "within it" in told and "not measured" in told
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"rank{r}" for r in range(int(ranks))]


def test_demo_too_far_off_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *SMALL, "--simulate", "--tolerance", "1e-12", "--dump", str(tmp_path)]) == 1
    assert "BEYOND IT" in capsys.readouterr().out


@pytest.mark.parametrize(("ranks", "tokens"), [(2, 8), (3, 7)])
@pytest.mark.xdist_group("ranks")
def test_by_hand_is_right(ranks: int, tokens: int) -> None:
    n = Sizes(tokens, 12, 24)
    shards = run_on_ranks(ranks, hand_written, n, fresh=True)
    expected = reference(*random_inputs(n, torch.float32))
    torch.testing.assert_close(torch.cat(shards)[:tokens], expected)


def hand_written(n: Sizes) -> torch.Tensor:
    with joined() as world:
        return by_hand(random_inputs(n, torch.float32), world)()[0]


def test_distance() -> None:
    inf, nan = float("inf"), float("nan")
    one = torch.tensor([1.0, -4.0, inf, nan])
    assert trial.distance(one, one).absolute == 0
    off = trial.distance(torch.tensor([1.0, -4.5, inf, nan]), one)
    assert (off.absolute, off.relative, off.within) == (0.5, 0.125, False)
    for wrong in ([nan, -4.0, inf, nan], [1.0, -4.0, -inf, nan], [1.0, -4.0, inf, 0.0], [1.0, inf, inf, nan]):
        assert not trial.distance(torch.tensor(wrong), one).within
    assert not trial.distance(one.half(), one).within
    assert not trial.distance(one[:2], one).within
    assert not trial.distance(torch.tensor([3]), torch.tensor([4])).within


# ---- ranks end when they should -------------------------------------------------------------------------------------------------------------------


def started(*arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A demo that is timing its steps, and its ranks' process ids."""
    command = [*COMMAND, "demo", *SMALL, "--steps", "10000000", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "within it" in line:
            break
    ranks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(ranks) == 2
    return process, ranks


def wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() for pid in pids):
        assert time.monotonic() < deadline, "ranks outlived the process that started them"
        time.sleep(0.05)


@pytest.mark.xdist_group("ranks")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_ctrl_c_ends_all_quietly() -> None:
    process, ranks = started()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "")
    wait_for_end(ranks)


@pytest.mark.xdist_group("ranks")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_ranks_die_with_their_parent() -> None:
    process, ranks = started()
    process.kill()
    process.wait()
    wait_for_end(ranks)


@pytest.mark.xdist_group("ranks")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_a_dead_rank_is_named() -> None:
    process, ranks = started()
    os.kill(ranks[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "rank 1 was ended by signal 9 (SIGKILL)" in errors
    wait_for_end(ranks)


def test_ranks_know_only_who_started_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "NVFUSER_MASTER_PORT", "GROUP_RANK"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("KEPT", "yes")
    environ = launch._environment(1, 2, 4242)
    assert not [name for name in environ if name.startswith(("OMPI_", "SLURM_", "NVFUSER_", "GROUP_"))]
    assert [environ[n] for n in ("KEPT", "RANK", "WORLD_SIZE", "MASTER_PORT")] == ["yes", "1", "2", "4242"]
    assert environ["OMP_NUM_THREADS"] == str(max(1, launch.cores() // 2))
    assert launch.threads_per_rank(10_000) == 1


# ---- run and explain ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("ranks")
def test_run_on_real_ranks(tmp_path: Path) -> None:
    file = write(tmp_path, LINEAR, INPUTS, "def reference(x, w):\n    return torch.relu(x @ w.T)")
    done = ran("run", file, "--ranks", "2", "--steps", "2", "--tolerance", "0", "--dump", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "all_reduce" in done.stdout and "result against reference()" in done.stdout and "max abs error 0," in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        LINEAR,
        LINEAR + INPUTS,
        LINEAR + "\nwith FusionDefinition() as fd:\n    program(fd, 2)\ndel program",
        LINEAR + "\nbuild = program\ndel program\nclass Model(FusionDefinition):\n    def definition(self):\n        build(self, 2)\n",
    ],
    ids=["program", "inputs", "fd", "class"],
)
def test_run_simulated(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write(tmp_path, text), "--simulate", "--dump", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "all_reduce" in told and "op by op on one rank" in told


def test_run_of_a_repr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from interfuse import FusionDefinition

    names: dict = {}
    exec(LINEAR, names)
    with FusionDefinition() as fd:
        names["program"](fd, 2)
    assert main(["run", write(tmp_path, repr(fd)), "--simulate", "--dump", str(tmp_path)]) == 0
    assert "all_reduce" in capsys.readouterr().out


def test_run_against_a_wrong_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, LINEAR, INPUTS, "def reference(x, w):\n    return x @ w.T")
    assert main(["run", file, "--simulate", "--dump", str(tmp_path)]) == 1
    assert "BEYOND IT" in capsys.readouterr().out


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, LINEAR)
    assert main(["explain", file, "--ranks", "4"]) == 0
    assert "all_reduce" in capsys.readouterr().out
    assert main(["explain", file, "--stop", "local"]) == 0
    told = capsys.readouterr().out
    assert "all_reduce" in told and "segments" not in told
    assert main(["explain", file, "--rank", "5"]) == 1
    assert "rank 5 is not in the mesh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["run"], "FILE.py"),
        (["run", "nowhere.py"], "nowhere.py: there is no such file"),
        (["explain", "nowhere.py"], "nowhere.py: there is no such file"),
        (["demo", "--ranks", "0"], "expected a number above 0"),
        (["demo", "--ranks", "two"], "expected a number, got 'two'"),
        (["demo", "--dtype", "int8"], "invalid choice: 'int8'"),
    ],
)
def test_a_senseless_command_line_is_one_line_and_exit_code_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "no program; define `program(fd)`"),
        ("from interfuse import FusionDefinition", "no program"),
        ("from interfuse import FusionDefinition\nclass A(FusionDefinition): pass\nclass B(FusionDefinition): pass", "several programs (A, B)"),
        (LINEAR + "\ninputs = 3", "inputs is int, not a function"),
    ],
)
def test_a_file_without_a_program(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write(tmp_path, text), "--simulate"]) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1


def test_a_mesh_larger_than_the_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, LINEAR, "with FusionDefinition() as fd:\n    program(fd, 4)\ndel program")
    assert main(["run", file, "--ranks", "2"]) == 2
    assert "mesh needs 4 ranks, not 2" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, said in (("--version", "interfuse 0."), ("--help", "doctor")):
        with pytest.raises(SystemExit) as ended:
            main([argument])
        assert ended.value.code == 0 and said in capsys.readouterr().out


def test_bench_names_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert "dispatch.py" in capsys.readouterr().out


# ---- doctor and dump ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("ranks")
def test_doctor_finds_all_essentials_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "two ranks on this host summed a tensor" in told and "everything essential is here" in told


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("INTERFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(doctor, "handshake", lambda: False)
    monkeypatch.setattr(doctor.build, "find_compiler", lambda: None)
    settings.cache_clear()
    assert main(["doctor"]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "note" in lines["compiler"] and "apt install g++" in lines["compiler"]
    assert "BAD" in lines["cache"] and "INTERFUSE_CACHE_DIR" in lines["cache"]
    assert "BAD" in lines["Gloo"]


def test_doctor_reads_a_bad_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERFUSE_TIMEOUT", "soon")
    settings.cache_clear()
    found = doctor._settings()
    assert found.state == "BAD" and "INTERFUSE_TIMEOUT=soon" in found.text
    with pytest.raises(OptionError):
        settings()


def test_dump_leaves_nothing_half_written(tmp_path: Path) -> None:
    assert main(["demo", *SMALL, "--simulate", "--ranks", "2", "--dump", str(tmp_path)]) == 0
    (folder,) = (tmp_path / "rank0").iterdir()
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert main(["demo", *SMALL, "--simulate", "--ranks", "2", "--dump", str(tmp_path)]) == 0
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert not [name for name in before if name.startswith(".")]
    assert any(name.endswith(".cpp") for name in before)
