"""Emitted C++: equal to PyTorch, vectorised, independent of the number of threads; the cache of compiled kernels; launching."""

from __future__ import annotations

import multiprocessing
import os
import re
import stat
import subprocess
import time
from pathlib import Path

import pytest
import torch
from kernel_programs import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I32,
    I64,
    Graph,
    assert_same,
    call,
    compile_all,
    empty_outputs,
    gelu_bias,
    layernorm,
    make_inputs,
    random_segment,
    reference,
    rmsnorm,
    softmax,
    total,
    transposed,
)

from interfuse.emit.cpp import emit_cpp, kernel_name
from interfuse.errors import BuildError
from interfuse.ir import sizes
from interfuse.ir.nodes import Const, ScalarInput, SizeScalar
from interfuse.kernel.tile import tile
from interfuse.plan.segments import KernelSegment
from interfuse.run import build as build_module
from interfuse.run.build import build, find_compiler
from interfuse.run.launch import load

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

A, B = sizes.symbol("a"), sizes.symbol("b")
BINDINGS = [{"a": 5, "b": 3}, {"a": 1, "b": 8}, {"a": 0, "b": 2}, {"a": 67, "b": 1}]
TRIVIAL = 'extern "C" void {0}(int* x) {{ *x = {1}; }}\n'


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def check(segments: list[KernelSegment], cache: Path, bindings: list[dict[str, int]], scalars: dict[str, float] | None = None) -> None:
    for segment, compiled in zip(segments, compile_all(segments, cache), strict=True):
        for binding in bindings:
            inputs, outputs = make_inputs(segment, binding), empty_outputs(segment, binding)
            wanted = reference(segment, inputs, binding, scalars or {})
            call(compiled, [*inputs, *outputs], binding, scalars or {})
            assert_same(outputs, wanted, f"{binding}\n{compiled[0]}\n{emit_cpp(compiled[0], 'kernel')}")


# ---- meaning --------------------------------------------------------------------------------------------------------------------------------


def test_random(cache: Path) -> None:
    check([random_segment(seed) for seed in range(1000, 1030)], cache, BINDINGS)


def test_usual_suspects(cache: Path) -> None:
    check(
        [gelu_bias(A, 37), softmax(A, 37), softmax(A, 37, 0), layernorm(A, 67), rmsnorm(A, 33), transposed(A, 45)], cache, BINDINGS[:2] + BINDINGS[3:]
    )
    check([layernorm(40, 40, with_statistics=True), gelu_bias(3, 9, BF16), gelu_bias(3, 9, F16), gelu_bias(3, 9, F64)], cache, [{}])


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_reductions(cache: Path, name: str) -> None:
    segments = [total(A, 37, *dims, name=name, dtype=d) for dims in ((0,), (1,), (0, 1)) for d in (F32, I64)]
    check(segments, cache, BINDINGS)


def test_every_type(cache: Path) -> None:
    segments = []
    for source in (F32, F64, F16, BF16, I64, I32, BOOL):
        g = Graph()
        x = g.input(3, 37, dtype=source)
        segments.append(g.segment(*(g.op("cast", x, dtype=t) for t in (F32, F64, F16, BF16, I64, I32, BOOL))))
    check(segments, cache, [{}])


def test_every_function(cache: Path) -> None:
    segments = []
    for dtype in (F32, F64, BF16):
        g = Graph()
        x, y = g.input(101, dtype=dtype), g.input(101, dtype=dtype)
        positive = g.op("abs", x)
        outs = [g.op(f, x) for f in ("neg", "exp", "tanh", "sin", "cos", "relu", "reciprocal", "sigmoid", "silu")]
        outs += [g.op(f, positive) for f in ("log", "sqrt", "rsqrt")] + [
            g.op("pow", positive, y),
            g.op("pow", x, 2.0),
            *(g.op("pow", positive, p) for p in (0.5, -0.5, -1.0, 3.0, 2.5)),
        ]
        outs += [g.op(f, x, y) for f in ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")]
        outs.append(g.op("where", g.op("lt", x, y), x, 0.25))
        segments.append(g.segment(*outs))
    for dtype in (I64, I32):
        g = Graph()
        x = g.input(101, dtype=dtype)
        outs = [g.op(f, x) for f in ("neg", "abs", "relu")] + [g.op(f, x, 3) for f in ("add", "mul", "div", "maximum", "lt", "pow")]
        segments.append(g.segment(*outs, g.op("div", x, -4)))
    g = Graph()
    x = g.input(101)
    segments.append(g.segment(*(g.op("cast", g.op("cast", x, dtype=t), dtype=F32) for t in (BF16, F16))))
    check(segments, cache, [{}])


def test_factories_and_scalars(cache: Path) -> None:
    g = Graph()
    alpha, flag = ScalarInput("alpha", F64), ScalarInput("flag", BOOL)
    f = g.op("mul", g.op("cast", g.iota(A, SizeScalar(B), Const(3, I64), I64), dtype=F32), alpha)
    y = g.op("add", f, g.full([A], SizeScalar(sizes.mul(A, 2)), F32))
    segment = g.segment(g.op("where", g.op("lt", y, 100.0), y, alpha), g.full([A], flag, BOOL), g.iota(A, Const(0.5, F64), Const(0.1, F64), F32))
    check([segment], cache, BINDINGS, {"alpha": 0.37, "flag": True})


def test_constants_are_exact(cache: Path) -> None:
    values = [0.1, -2.5e-40, 1e30, float("inf"), float("-inf"), float("nan"), 3.0]
    g = Graph()
    segment = g.segment(*(g.full([3], Const(v, F64), t) for v in values for t in (F32, F64, BF16)), g.full([3], Const(-(2**63), I64), I64))
    ((kernel, function),) = compile_all([segment], cache)
    outputs = empty_outputs(segment, {})
    call((kernel, function), outputs, {})
    for got, wanted in zip(outputs, reference(segment, [], {}), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_special_values_survive(cache: Path) -> None:
    special = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-42, 88.7, 89.5, -103.9, -104.5, 1e30, -1e30]
    g = Graph()
    x = g.input(len(special))
    segment = g.segment(
        *(g.op(f, x) for f in ("exp", "tanh", "sigmoid", "relu", "abs", "reciprocal")), g.op("maximum", x, 1.0), g.op("minimum", x, 1.0)
    )
    (compiled,) = compile_all([segment], cache)
    inputs, outputs = [torch.tensor(special)], empty_outputs(segment, {})
    call(compiled, [*inputs, *outputs], {})
    for got, wanted in zip(outputs, reference(segment, inputs, {}), strict=True):
        torch.testing.assert_close(got, wanted, rtol=3e-7, atol=1e-45, equal_nan=True)


def test_half_types_round_to_nearest_even(cache: Path) -> None:
    bits = torch.cat([torch.arange(-(2**31), 2**31, 40503, dtype=torch.int64), torch.arange(0x38000000, 0x48000000, 4099)]).to(torch.int32)
    g = Graph()
    x = g.input(len(bits))
    segment = g.segment(g.op("cast", x, dtype=BF16), g.op("cast", x, dtype=F16))
    (compiled,) = compile_all([segment], cache)
    inputs, outputs = [bits.view(torch.float32)], empty_outputs(segment, {})
    call(compiled, [*inputs, *outputs], {})
    for got, dtype in zip(outputs, (torch.bfloat16, torch.float16), strict=True):
        torch.testing.assert_close(got, inputs[0].to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "ulps"), [("exp", 1.0), ("tanh", 1.5), ("log", 1.0), ("sin", 1.0), ("cos", 1.0)])
def test_functions_are_accurate(cache: Path, name: str, ulps: float) -> None:
    x = torch.cat([torch.linspace(-90, 90, 400_001), torch.linspace(-2, 2, 200_001), torch.logspace(-30, 30, 100_001)])
    g = Graph()
    segment = g.segment(g.op(name, g.input(len(x))))
    (compiled,) = compile_all([segment], cache)
    outputs = empty_outputs(segment, {})
    call(compiled, [x, *outputs], {})
    exact = getattr(torch, name)(x.double())
    there = torch.isfinite(exact) & (exact.abs() > 1e-36) & (exact.abs() < 3e38)
    unit = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 24)
    assert float(((outputs[0].double() - exact).abs() / unit)[there].max()) <= ulps


def test_plain_arithmetic_is_bitwise_pytorch(cache: Path) -> None:
    g = Graph()
    x, y, z = (g.input(1000) for _ in range(3))
    segment = g.segment(g.op("add", g.op("mul", x, y), z), g.op("div", g.op("sub", x, y), z))
    (compiled,) = compile_all([segment], cache)
    inputs, outputs = make_inputs(segment, {}), empty_outputs(segment, {})
    call(compiled, [*inputs, *outputs], {})
    for got, wanted in zip(outputs, reference(segment, inputs, {}), strict=True):
        assert torch.equal(got, wanted)


def test_threads_do_not_change_results(cache: Path) -> None:
    segments = [total(700, 300, *dims) for dims in ((0,), (1,), (0, 1))] + [
        total(3, 70000, 1),
        total(70000, 3, 0),
        layernorm(300, 200),
        gelu_bias(300, 200),
    ]
    before = torch.get_num_threads()
    try:
        for segment, compiled in zip(segments, compile_all(segments, cache), strict=True):
            inputs, results = make_inputs(segment, {}), []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                outputs = empty_outputs(segment, {})
                call(compiled, [*inputs, *outputs], {})
                results.append(outputs[0])
            assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
            assert_same(results[:1], reference(segment, inputs, {})[:1])
    finally:
        torch.set_num_threads(before)


# ---- text and machine code -------------------------------------------------------------------------------------------------------------------


def test_golden_text() -> None:
    g = Graph()
    text = emit_cpp(tile(g.segment(g.op("relu", g.op("add", g.input(8, 4), g.input(1, 4))))), "bias_relu")
    assert text == GOLDEN


GOLDEN = """\
// Interfuse pointwise kernel: in0 f32, in1 f32 -> out0 f32; all dense, row-major; n0, n1, ... are sizes.
#include <cstdint>

static inline int64_t if_least(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T> static inline T if_relu(T x) { return x < (T)0 ? (T)0 : x; }

extern "C" void bias_relu(const float* __restrict in0, const float* __restrict in1, float* __restrict out0, int64_t n0, int64_t n1) {
#pragma omp parallel for schedule(static) if (n0 * n1 >= 32768)
    for (int64_t g = 0; g < ((n1 + 4095) / 4096) * n0; ++g) {
        const int64_t i0 = g / ((n1 + 4095) / 4096);
        const int64_t i1b = 4096 * (g % ((n1 + 4095) / 4096));
#pragma omp simd
        for (int64_t i1 = i1b; i1 < if_least(i1b + 4096, n1); ++i1) {
            const float v1 = in0[i0 * n1 + i1];
            const float v2 = in1[i1];
            const float v3 = v1 + v2;
            const float v4 = if_relu(v3);
            out0[i0 * n1 + i1] = v4;
        }
    }
}
"""


def test_identical_kernels_have_one_name() -> None:
    assert kernel_name(tile(softmax(3, 40))) == kernel_name(tile(softmax(500, A))) != kernel_name(tile(softmax(3, 40, 0)))


@pytest.mark.skipif("avx2" not in build_module.cpu_features(), reason="needs AVX2")
def test_lanes_become_vectors(cache: Path) -> None:
    g = Graph()
    logs = g.segment(g.op("log", g.op("mul", g.input(1000), 3.0)))
    for segment, wanted in ((gelu_bias(64, 64), ("vmulps", "vroundps")), (logs, ("vmulps", "call.*_ZGV[de]N"))):
        kernel = tile(segment)
        name = kernel_name(kernel)
        path = build({name: emit_cpp(kernel, name)}, cache_dir=cache)[name]
        code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True, check=True).stdout
        assert re.search(r"vmulps.*%[yz]mm", code) and all(re.search(w, code) for w in wanted)


# ---- the cache ------------------------------------------------------------------------------------------------------------------------------


def value_of(path: Path, symbol: str) -> int:
    cell = torch.zeros(1, dtype=torch.int32)
    load(path, symbol, "p")(cell.data_ptr())
    return int(cell)


def test_equal_texts_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = build_module._compile
    monkeypatch.setattr(build_module, "_compile", lambda library, text, compiler: (calls.append(text), real(library, text, compiler)))
    text = TRIVIAL.format("f", 1)
    paths = build({"x": text, "y": text, "z": TRIVIAL.format("f", 2)}, cache_dir=tmp_path)
    assert len(calls) == 2 and paths["x"] == paths["y"] != paths["z"]
    build({"x": text}, cache_dir=tmp_path)
    build_module._built.clear()
    build({"x": text}, cache_dir=tmp_path)
    assert len(calls) == 2
    assert stat.S_IMODE((tmp_path / "cpp").stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["truncated", "swapped", "unchecked"])
def test_damaged_entry_is_rebuilt(tmp_path: Path, damage: str) -> None:
    text = TRIVIAL.format("f", 7)
    path = build({"f": text}, cache_dir=tmp_path)["f"]
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "swapped":
        path.write_bytes(b"not a library")
    else:
        path.with_suffix(".sha256").unlink()
    build_module._built.clear()
    assert value_of(build({"f": text}, cache_dir=tmp_path)["f"], "f") == 7


def _build_in_process(folder: str, start: float) -> str:
    time.sleep(max(0.0, start - time.time()))
    return str(build({f"f{k}": TRIVIAL.format("f", k) for k in range(3)}, cache_dir=Path(folder))["f2"])


def test_two_processes_build_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.starmap(_build_in_process, [(str(tmp_path), time.time() + 3)] * 2)
    assert first == second and value_of(Path(first), "f") == 2
    assert not [p for p in os.listdir(tmp_path / "cpp") if p.startswith("building-")]


def test_compiler_says_why(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="nonsense"):
        build({"f": "nonsense;"}, cache_dir=tmp_path)


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "find_compiler", lambda: None)
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        build({"f": TRIVIAL.format("f", 1)}, cache_dir=tmp_path)


def test_missing_symbol(tmp_path: Path) -> None:
    path = build({"f": TRIVIAL.format("f", 1)}, cache_dir=tmp_path)["f"]
    with pytest.raises(BuildError, match="cannot load kernel g"):
        load(path, "g", "p")


# ---- speed ----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_large_kernels_meet_their_targets(cache: Path) -> None:
    """Milliseconds on two cores of 2021, fp32; the factor of two is for neighbours."""
    n = 4096
    cases: list[tuple[KernelSegment, float]] = [
        (gelu_bias(n, n), 20),
        (softmax(n, n), 30),
        (layernorm(n, n), 25),
        (total(n, n, 0), 6),
        (total(n, n, 1), 4),
        (transposed(n, n), 60),
    ]
    for (segment, limit_ms), compiled in zip(cases, compile_all([s for s, _ in cases], cache), strict=True):
        tensors = [*make_inputs(segment, {}), *empty_outputs(segment, {})]
        best = min(_seconds(compiled, tensors) for _ in range(10))
        assert best * 1e3 < 2 * limit_ms, compiled[0].template


def _seconds(compiled: tuple, tensors: list[torch.Tensor]) -> float:
    start = time.perf_counter()
    call(compiled, tensors, {})
    return time.perf_counter() - start


def test_a_small_call_is_cheap(cache: Path) -> None:
    segment = gelu_bias(8, 8)
    ((kernel, function),) = compile_all([segment], cache)
    tensors = [*make_inputs(segment, {}), *empty_outputs(segment, {})]
    arguments = [*(t.data_ptr() for t in tensors), *(sizes.evaluate(n, {}) for n in kernel.size_args)]

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            function(*arguments)  # type: ignore[operator]
        return (time.perf_counter() - start) / 1000

    assert min(seconds() for _ in range(10)) < 10e-6
