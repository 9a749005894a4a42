"""Launches over blocks: right in Triton's interpreter, compiled without a GPU, launched through compiled handles. Needs Triton, not a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton_corpus import bias_backward, corpus, kernel_of, layernorm_backward, named, run_on_gpu

from interfuse import DataType, FusionDefinition
from interfuse.emit.triton import emit_triton
from interfuse.errors import OptionError
from interfuse.kernel.target import TARGETS, nearest
from interfuse.run import triton_launch
from interfuse.run.triton_launch import compile_row, module_of

HERE = Path(__file__).parent
LONG = os.environ.get("INTERFUSE_FUZZ") == "long"
RANDOM = 120 if LONG else 8


@pytest.mark.parametrize("part", [0, 1])
def test_kernels_mean_what_their_nodes_mean(part: int) -> None:
    """In a process of its own: Triton decides when it is imported whether it interprets."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(HERE / "triton_corpus.py"), str(part), "2", str(RANDOM)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-2000:]}"


def gpu_target(name: str) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("hip", "gfx942", 64) if name == "gfx942" else GPUTarget("cuda", int(name[3:]), 32)


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "gfx942"])
def test_kernels_compile_without_a_gpu(target: str, tmp_path: Path) -> None:
    """Each program for one target in turn, for all of them in long runs."""
    turn = ["sm_90", "sm_100", "gfx942"].index(target)
    for k, (name, segment) in enumerate(corpus(RANDOM if LONG else 0)):
        if not LONG and k % 3 != turn:
            continue
        kernel = kernel_of(segment, TARGETS[target])
        assert kernel is not None, name
        for row in module_of(emit_triton(kernel), tmp_path).LAUNCHES:
            made = compile_row(row, [True] * len(row["types"].split()), gpu_target(target))
            assert made.asm, name


def test_every_program_of_the_corpus_has_a_template() -> None:
    assert [name for name, segment in named() if kernel_of(segment) is None] == []


def test_rows_and_columns_take_one_pass() -> None:
    kernel = kernel_of(layernorm_backward(300, 24))
    assert kernel is not None
    assert [launch.template for launch in kernel.launches] == ["rows and columns", "reduction"]
    text = emit_triton(kernel)
    assert text.count("tl.load(in0") == 2, text  # x once in the main launch, the parts once in the finishing one


# ---- launching ------------------------------------------------------------------------------------------------------------------------------


class Handle:
    """A compiled kernel as the adapter uses it."""

    function, packed_metadata = "function", "packed"

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def run(self, *args: Any) -> None:
        self.calls.append(args)


def test_a_handle_is_chosen_by_alignment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled: list[Any] = []
    calls: list[Any] = []

    def compile_row(row: Any, divisible: Any, target: Any = None) -> Handle:
        compiled.append((row["kernel"].fn.__name__, tuple(divisible)))
        return Handle(calls)

    monkeypatch.setattr(triton_launch, "compile_row", compile_row)
    monkeypatch.setattr(triton_launch, "empty_cuda", lambda shape, strides, dtype: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(triton_launch, "_stream_getter", lambda: lambda device: 7)
    kernel = kernel_of(bias_backward(5000, 16))
    assert kernel is not None and len(kernel.launches) == 2
    function = triton_launch.load_triton(emit_triton(kernel), 0)
    known = [int(n) for n in kernel.size_args]  # type: ignore[arg-type]
    for first in (16, 160, 34, 32):
        function(first, 32, 48, 64, *known)
    assert len(compiled) == 4, "two launches, for aligned and for unaligned pointers"
    assert compiled[0][1][0] and not compiled[2][1][0]
    assert [c[9] for c in calls[::2]] == [16, 160, 34, 32]
    assert calls[0][1:9] == (1, 1, 7, "function", "packed", None, None, None)


# ---- plans for a device ---------------------------------------------------------------------------------------------------------------------


def program() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.BFloat16, contiguity=True)
        fd.add_output(fd.ops.relu(x))
    return fd


def test_a_plan_for_a_device_that_is_not_here() -> None:
    report = program().explain(global_sizes=[(64, 128)], target="sm_90")
    assert "@triton.jit" in report.source("k0") and "empty_cuda((64, 128), (128, 1), bfloat16)" in report.source("host")
    assert "extern" in program().explain(global_sizes=[(64, 128)]).source("k0")


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(OptionError, match=r"sm_70.*known targets are cpu, sm_80"):
        program().explain(global_sizes=[(64, 128)], target="sm_70")


def test_the_nearest_target() -> None:
    assert [getattr(nearest("cuda", arch), "name", None) for arch in (75, 86, 90, 103, 120)] == [None, "sm_80", "sm_90", "sm_100", "sm_100"]
    assert nearest("hip", "gfx90a") is None


def test_importing_interfuse_does_not_import_triton() -> None:
    code = "import sys, interfuse; from interfuse import FusionDefinition; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(HERE.parent)}, check=False).returncode == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", [name for name, _ in named()])
def test_kernels_on_the_gpu(name: str, tmp_path: Path) -> None:
    segment = dict(named())[name]
    kernel = kernel_of(segment)
    assert kernel is not None
    run_on_gpu(segment, kernel, tmp_path)
