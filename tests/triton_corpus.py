"""Kernel segments for the Triton tests, with sizes as numbers, and two ways to use their modules: in Triton's interpreter, and compiled.

TRITON_INTERPRET=1 python tests/triton_corpus.py 0 1 40   # all of the corpus against node-by-node PyTorch; prints what differs
python tests/triton_corpus.py 0 1 40 cuda                      # the same, compiled, on a GPU
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from kernel_programs import (
    BF16,
    F16,
    F32,
    F64,
    I32,
    I64,
    Graph,
    assert_same,
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

from interfuse.emit.triton import emit_triton
from interfuse.ir import sizes
from interfuse.ir.nodes import Const, Tensor
from interfuse.ir.sizes import Expr
from interfuse.kernel.block import block
from interfuse.kernel.blocks import BlockKernel
from interfuse.kernel.space import Refused
from interfuse.kernel.target import TARGETS, Target
from interfuse.plan.segments import KernelSegment
from interfuse.run.triton_launch import module_of


def concrete(segment: KernelSegment, binding: Mapping[str, int]) -> KernelSegment:
    """The segment with numbers in place of symbols."""
    made: dict[Tensor, Tensor] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            if value not in made:
                made[value] = replace(value, shape=tuple(sizes.evaluate(n, binding) for n in value.shape))
            return made[value]
        if isinstance(value, Expr):
            return sizes.evaluate(value, binding)
        if isinstance(value, tuple):
            return tuple(convert(v) for v in value)
        return value

    def rebuilt(node: Any) -> Any:
        return replace(node, **{f.name: convert(getattr(node, f.name)) for f in fields(node)}) if is_dataclass(node) else node

    inputs, nodes = convert(segment.inputs), tuple(rebuilt(n) for n in segment.nodes)
    return replace(segment, inputs=inputs, nodes=nodes, outputs=convert(segment.outputs))


# ---- programs -------------------------------------------------------------------------------------------------------------------------------


def layernorm_backward(n: int, m: int, *, rms: bool = False, with_bias_first: bool = False) -> KernelSegment:
    """dx, dw (and db) from x, dy, w, the mean and the reciprocal deviation."""
    g = Graph()
    x, dy, w = g.input(n, m, dtype=BF16), g.input(n, m, dtype=BF16), g.input(m, dtype=BF16)
    mean, rstd = g.input(n), g.input(n)
    f, d = g.op("cast", x, dtype=F32), g.op("cast", dy, dtype=F32)
    db = g.op("cast", g.reduce("sum", d, 0), dtype=BF16) if with_bias_first else None
    centred = f if rms else g.op("sub", f, g.broadcast(mean, (n, m), (0,)))
    hat = g.op("mul", centred, g.broadcast(rstd, (n, m), (0,)))
    wd = g.op("mul", d, g.broadcast(g.op("cast", w, dtype=F32), (n, m), (1,)))
    c1 = g.op("div", g.keep("sum", g.op("mul", hat, wd), 1), float(m))
    inner = g.op("sub", wd, g.op("mul", hat, g.broadcast(c1, (n, m), (0, 1))))
    if not rms:
        inner = g.op("sub", inner, g.op("div", g.keep("sum", wd, 1), float(m)))
    dx = g.op("cast", g.op("mul", inner, g.broadcast(rstd, (n, m), (0,))), dtype=BF16)
    outputs = [dx, g.op("cast", g.reduce("sum", g.op("mul", d, hat), 0), dtype=BF16)]
    if not rms:
        outputs.append(db if db is not None else g.op("cast", g.reduce("sum", d, 0), dtype=BF16))
    return g.segment(*outputs)


def bias_backward(n: int, m: int) -> KernelSegment:
    """dx = dy * (1 + tanh(x)), stored whole, and its sum over rows."""
    g = Graph()
    x, dy = g.input(n, m), g.input(n, m)
    dx = g.op("mul", dy, g.op("add", g.op("tanh", x), 1.0))
    return g.segment(dx, g.reduce("sum", dx, 0))


def batchnorm(n: int, c: int, h: int) -> KernelSegment:
    g = Graph()
    x, w = g.input(n, c, h, dtype=BF16), g.input(c)
    f = g.op("cast", x, dtype=F32)
    mean = g.op("div", g.reduce("sum", f, 0, 2), float(n * h))
    d = g.op("sub", f, g.broadcast(mean, (n, c, h), (1,)))
    var = g.op("div", g.reduce("sum", g.op("mul", d, d), 0, 2), float(n * h))
    rstd = g.op("rsqrt", g.op("add", var, 1e-5))
    y = g.op("mul", d, g.broadcast(g.op("mul", rstd, w), (n, c, h), (1,)))
    return g.segment(g.op("cast", y, dtype=BF16), mean, var)


def cross_entropy(n: int, m: int) -> KernelSegment:
    """log(sum(exp(x − max))) + max − x[target], the target as a comparison with positions."""
    g = Graph()
    x, target = g.input(n, m, dtype=BF16), g.input(n, dtype=I64)
    f = g.op("cast", x, dtype=F32)
    top = g.reduce("max", f, 1)
    e = g.op("exp", g.op("sub", f, g.broadcast(top, (n, m), (0,))))
    lse = g.op("add", g.op("log", g.reduce("sum", e, 1)), top)
    position = g.broadcast(g.iota(m, Const(0, I64), Const(1, I64), I64), (n, m), (1,))
    hit = g.op("eq", position, g.broadcast(target, (n, m), (0,)))
    zero = g.broadcast(g.full((1, 1), Const(0.0, F32), F32), (n, m), (0, 1))
    return g.segment(g.op("sub", lse, g.reduce("sum", g.op("where", hit, f, zero), 1)))


def sines(n: int) -> KernelSegment:
    g = Graph()
    x = g.input(n)
    for _ in range(3):
        x = g.op("add", g.op("mul", g.op("sin", x), 1.1), 0.3)
    return g.segment(g.op("add", x, g.op("cos", g.inputs[0])))


def silu_mul(n: int, m: int) -> KernelSegment:
    g = Graph()
    return g.segment(g.op("mul", g.op("silu", g.input(n, m)), g.input(n, m)))


# A device with few registers, so that short rows are looped over and cut: the interpreter is slow.
SMALL = Target("small", "triton", "cuda", "cuda", 90, 4, 32, 32, 2048, 1024, 227 << 10, 50 << 20)


def named(long: int = 40000) -> Iterator[tuple[str, KernelSegment]]:
    """Every template, in sizes that pad and that do not; rows of about `long` elements do not fit in registers."""
    yield "gelu bias", gelu_bias(5, 96)
    yield "gelu bias narrow", gelu_bias(40, 3)
    yield "silu mul", silu_mul(7, 33)
    yield "sin chain", sines(100)
    yield "transpose", transposed(70, 33)
    yield "softmax short rows", softmax(9, 20)
    yield "softmax dim 0", softmax(20, 9, 0)
    yield "softmax looped", softmax(2, long)
    yield "softmax dim 0 looped", softmax(long // 10, 3, 0)
    yield "layernorm", layernorm(5, 96, with_statistics=True)
    yield "layernorm looped", layernorm(2, long - 7, with_statistics=True)
    yield "rmsnorm", rmsnorm(6, 128)
    yield "batchnorm", batchnorm(4, 5, 9)
    yield "batchnorm looped", batchnorm(8, 2, long // 8)
    yield "cross entropy", cross_entropy(4, 50)
    yield "cross entropy looped", cross_entropy(40, long // 2)
    yield "layernorm backward", layernorm_backward(300, 24)
    yield "layernorm backward, bias first", layernorm_backward(20, 24, with_bias_first=True)
    yield "rmsnorm backward long", layernorm_backward(5, long // 16, rms=True)
    yield "bias backward", bias_backward(300, 24)
    yield "bias backward cut", bias_backward(long // 8, 9)
    for name in ("sum", "max"):
        yield f"{name} dim 1", total(6, 100, 1, name=name, dtype=BF16)
        yield f"{name} dim 0", total(100, 6, 0, name=name)
    yield "sum dim 0 cut", total(long // 4, 6, 0)
    yield "sum all cut", total(3, 2 * long, 0, 1)
    yield "max all", total(3, 7, 0, 1, name="max", dtype=I32)
    yield "prod", total(3, 7, 1, name="prod", dtype=F64)
    yield "half", total(33, 5, 1, dtype=F16)
    yield "empty rows", total(4, 0, 1)


def corpus(random_ones: int = 40, long: int = 40000) -> list[tuple[str, KernelSegment]]:
    found = list(named(long))
    for seed in range(random_ones):
        found.append((f"random {seed}", concrete(random_segment(seed), {"a": 5, "b": 3})))
    return found


# ---- running --------------------------------------------------------------------------------------------------------------------------------


def kernel_of(segment: KernelSegment, target: Target = TARGETS["sm_90"]) -> BlockKernel | None:
    """None where no template holds the segment: ATen runs it."""
    try:
        return block(segment, target)
    except Refused:
        return None


def run_interpreted(segment: KernelSegment, kernel: BlockKernel, folder: Path) -> None:
    """One segment in Triton's interpreter; raises where it differs from PyTorch."""
    module = module_of(emit_triton(kernel), folder)
    inputs = make_inputs(segment, {})
    outputs = empty_outputs(segment, {})
    by_name = dict(zip(module.TENSORS, [*inputs, *outputs], strict=True))
    known = dict(zip(module.SIZES, [n if isinstance(n, int) else sizes.evaluate(n, {}) for n in kernel.size_args], strict=True))
    scratch = {"fp32": torch.float32, "fp64": torch.float64, "i64": torch.int64, "i32": torch.int32, "i1": torch.bool}
    for k, (dtype, count) in enumerate(module.SCRATCH):
        by_name[f"p{k}"] = torch.full((count(**known),), 55).to(scratch[dtype])
    for row in module.LAUNCHES:
        if grid := row["grid"](**known):
            row["kernel"][(grid,)](*[eval(n, {**by_name, **known}) for n in row["args"].split()])
    assert_same(outputs, reference(segment, inputs, {}))


def run_on_gpu(segment: KernelSegment, kernel: BlockKernel, folder: Path) -> None:
    """One segment on the current device; raises where it differs from PyTorch on the CPU, or from itself when it runs again."""
    from interfuse.run.triton_launch import load_triton

    inputs = make_inputs(segment, {})
    function = load_triton(emit_triton(kernel), torch.cuda.current_device())
    results = []
    for _ in range(2):
        tensors = [t.cuda() for t in [*inputs, *empty_outputs(segment, {})]]
        function(*(t.data_ptr() for t in tensors), *kernel.size_args)
        results.append([t.cpu() for t in tensors[len(inputs) :]])
    assert_same(results[0], reference(segment, inputs, {}))
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*results, strict=True)), "two runs differ"


def main(part: int, parts: int, random_ones: int, on_gpu: bool) -> int:
    failed = 0
    found = corpus(random_ones) if on_gpu else corpus(random_ones, 700)
    with tempfile.TemporaryDirectory() as folder:
        for name, segment in found[part::parts]:
            if all(n for t in segment.outputs for n in t.shape) and (kernel := kernel_of(segment, *([] if on_gpu else [SMALL]))) is not None:
                try:
                    (run_on_gpu if on_gpu else run_interpreted)(segment, kernel, Path(folder))
                except Exception:
                    failed += 1
                    print(f"--- {name}\n{emit_triton(kernel)}\n{traceback.format_exc()[-1500:]}", flush=True)
    print(f"{len(found[part::parts])} programs, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4]), on_gpu="cuda" in sys.argv))
