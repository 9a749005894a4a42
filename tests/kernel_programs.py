"""Kernel segments to test with: a small builder, the usual suspects, random ones, and three ways to run them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from interfuse.emit.cpp import emit_cpp, kernel_name
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Broadcast, Cat, Const, Full, Iota, Node, Operand, Pad, Permute, Pointwise, Reduce, Reshape, Scalar, Slice, Tensor
from interfuse.ir.sizes import Size
from interfuse.kernel.interpret import interpret
from interfuse.kernel.nodes import TileKernel
from interfuse.kernel.tile import refuse, tile
from interfuse.ops.elementwise import ROWS as ELEMENTWISE
from interfuse.ops.evaluate import evaluate_node, scalar_value
from interfuse.ops.reduce import ROWS as REDUCTIONS
from interfuse.plan.segments import KernelSegment
from interfuse.run.build import build
from interfuse.run.launch import load

F32, F64, F16, BF16 = DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16
I64, I32, BOOL = DataType.Int, DataType.Int32, DataType.Bool
Scalars = Mapping[str, float]
NONE: Scalars = {}


class Graph:
    """Inputs and nodes as they are added; every method gives the new tensor."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.nodes: list[Node] = []

    def new(self, shape: Sequence[Size], dtype: DataType) -> Tensor:
        return Tensor(f"t{len(self.inputs) + len(self.nodes)}", tuple(shape), dtype)

    def input(self, *shape: Size, dtype: DataType = F32) -> Tensor:
        self.inputs.append(self.new(shape, dtype))
        return self.inputs[-1]

    def add(self, node: Node) -> Tensor:
        self.nodes.append(node)
        return node.out

    def op(self, name: str, *args: Operand | float, dtype: DataType | None = None) -> Tensor:
        tensors = [a for a in args if isinstance(a, Tensor)]
        shape = [next((t.shape[d] for t in tensors if t.shape[d] != 1), 1) for d in range(tensors[0].ndim)]
        operands = tuple(Const(a, F64 if isinstance(a, float) else I64) if isinstance(a, (int, float)) else a for a in args)
        dtype = dtype or (BOOL if name in ("eq", "ne", "lt", "le", "gt", "ge") else tensors[-1].dtype)
        return self.add(Pointwise(self.new(shape, dtype), ELEMENTWISE[name], operands))

    def reduce(self, name: str, arg: Tensor, *dims: int, dtype: DataType | None = None) -> Tensor:
        shape = [n for d, n in enumerate(arg.shape) if d not in dims]
        return self.add(Reduce(self.new(shape, dtype or arg.dtype), REDUCTIONS[name], arg, dims))

    def keep(self, name: str, arg: Tensor, dim: int) -> Tensor:
        """A reduction whose dim stays, with size 1."""
        shape = [1 if d == dim else n for d, n in enumerate(arg.shape)]
        return self.broadcast(self.reduce(name, arg, dim), shape, [d for d in range(arg.ndim) if d != dim])

    def broadcast(self, arg: Tensor, shape: Sequence[Size], dims: Sequence[int]) -> Tensor:
        return self.add(Broadcast(self.new(shape, arg.dtype), arg, tuple(dims)))

    def permute(self, arg: Tensor, *dims: int) -> Tensor:
        return self.add(Permute(self.new([arg.shape[d] for d in dims], arg.dtype), arg, dims))

    def reshape(self, arg: Tensor, *shape: Size) -> Tensor:
        return self.add(Reshape(self.new(shape, arg.dtype), arg))

    def slice(self, arg: Tensor, starts: Sequence[Size], shape: Sequence[Size]) -> Tensor:
        return self.add(Slice(self.new(shape, arg.dtype), arg, tuple(starts)))

    def pad(self, arg: Tensor, before: Sequence[Size], shape: Sequence[Size], value: float = 0.0) -> Tensor:
        return self.add(Pad(self.new(shape, arg.dtype), arg, tuple(before), Const(value, F64)))

    def cat(self, dim: int, *args: Tensor) -> Tensor:
        shape = list(args[0].shape)
        shape[dim] = sizes.add(*(a.shape[dim] for a in args))
        return self.add(Cat(self.new(shape, args[0].dtype), args, dim))

    def full(self, shape: Sequence[Size], value: Scalar, dtype: DataType) -> Tensor:
        return self.add(Full(self.new(shape, dtype), value))

    def iota(self, length: Size, start: Scalar, step: Scalar, dtype: DataType) -> Tensor:
        return self.add(Iota(self.new([length], dtype), start, step))

    def segment(self, *outputs: Tensor) -> KernelSegment:
        return KernelSegment("s", tuple(self.inputs), (), tuple(self.nodes), outputs, "", "")


# ---- the usual suspects ---------------------------------------------------------------------------------------------------------------------


def gelu_bias(n: Size, m: Size, dtype: DataType = F32) -> KernelSegment:
    g = Graph()
    x, b = g.input(n, m, dtype=dtype), g.input(m, dtype=dtype)
    v = g.op("add", x, g.broadcast(b, (n, m), (1,)))
    cube = g.op("mul", g.op("mul", g.op("mul", v, v), v), 0.044715)
    t = g.op("tanh", g.op("mul", g.op("add", v, cube), 0.7978845608028654))
    return g.segment(g.op("mul", g.op("mul", v, 0.5), g.op("add", t, 1.0)))


def softmax(n: Size, m: Size, dim: int = 1) -> KernelSegment:
    g = Graph()
    x = g.input(n, m)
    e = g.op("exp", g.op("sub", x, g.keep("max", x, dim)))
    return g.segment(g.op("div", e, g.keep("sum", e, dim)))


def layernorm(n: Size, m: int, *, with_statistics: bool = False) -> KernelSegment:
    g = Graph()
    x, w, b = g.input(n, m), g.input(m), g.input(m)
    mean = g.op("div", g.reduce("sum", x, 1), float(m))
    d = g.op("sub", x, g.broadcast(mean, (n, 1), (0,)))
    var = g.op("div", g.reduce("sum", g.op("mul", d, d), 1), float(m))
    r = g.op("rsqrt", g.op("add", var, 1e-5))
    y = g.op("mul", g.op("mul", d, g.broadcast(r, (n, 1), (0,))), g.broadcast(w, (n, m), (1,)))
    y = g.op("add", y, g.broadcast(b, (n, m), (1,)))
    return g.segment(y, mean, r) if with_statistics else g.segment(y)


def rmsnorm(n: Size, m: int, dtype: DataType = BF16) -> KernelSegment:
    g = Graph()
    x, w = g.input(n, m, dtype=dtype), g.input(m, dtype=dtype)
    f = g.op("cast", x, dtype=F32)
    r = g.op("rsqrt", g.op("add", g.op("div", g.keep("sum", g.op("mul", f, f), 1), float(m)), 1e-6))
    y = g.op("mul", g.op("mul", f, r), g.broadcast(g.op("cast", w, dtype=F32), (n, m), (1,)))
    return g.segment(g.op("cast", y, dtype=dtype))


def total(n: Size, m: Size, *dims: int, name: str = "sum", dtype: DataType = F32) -> KernelSegment:
    g = Graph()
    return g.segment(g.reduce(name, g.input(n, m, dtype=dtype), *dims))


def transposed(n: Size, m: Size) -> KernelSegment:
    g = Graph()
    return g.segment(g.op("add", g.op("mul", g.permute(g.input(n, m), 1, 0), 2.0), 1.0))


# ---- random ones ----------------------------------------------------------------------------------------------------------------------------


def random_segment(seed: int) -> KernelSegment:
    """Up to eight nodes, each kept only where one template still holds all of them; sizes are numbers and the symbols `a` and `b`."""
    rng = random.Random(seed)
    g = Graph()
    pool = [1, 2, 3, 5, 7, 40, sizes.symbol("a"), sizes.symbol("b")]
    shape = [rng.choice(pool) for _ in range(rng.randint(1, 3))]
    current = g.input(*shape, dtype=rng.choice([F32, F32, F32, F64, BF16, F16, I64]))
    others: list[Tensor] = []
    for _ in range(rng.randint(2, 8)):
        kept = len(g.nodes), len(g.inputs)
        following = _random_node(rng, g, current, others)
        if refuse(g.nodes, [following]) is not None:
            del g.nodes[kept[0] :], g.inputs[kept[1] :]
            continue
        others.append(current)
        current = following
    outputs = [current]
    for other in rng.sample(others, min(2, len(others))):
        if other not in g.inputs and refuse(g.nodes, [*outputs, other]) is None and rng.random() < 0.5:
            outputs.append(other)
    return g.segment(*outputs) if g.nodes else g.segment(g.op("add", current, current))


def _random_node(rng: random.Random, g: Graph, t: Tensor, others: list[Tensor]) -> Tensor:
    kind = rng.choice(["unary", "binary", "scalar", "same", "permute", "broadcast", "reduce", "slice", "pad", "cat", "flatten", "unsqueeze", "row"])
    d = rng.randrange(t.ndim) if t.ndim else 0
    if kind == "unary" and t.dtype.is_float:
        return g.op(rng.choice(["neg", "abs", "exp", "tanh", "sin", "cos", "relu", "sigmoid", "silu", "log", "sqrt"]), t)
    if kind == "scalar":
        return g.op(rng.choice(["add", "mul", "maximum", "minimum"]), t, 0.5 if t.dtype.is_float else 3)
    if kind == "same" and (fit := [o for o in others if o.shape == t.shape and o.dtype == t.dtype]):
        return g.op(rng.choice(["add", "sub", "mul", "maximum"]), t, rng.choice(fit))
    if kind == "permute" and t.ndim > 1:
        return g.permute(t, *rng.sample(range(t.ndim), t.ndim))
    if kind == "broadcast" and t.ndim < 3:
        at = rng.randint(0, t.ndim)
        shape = [*t.shape[:at], rng.choice([1, 4, sizes.symbol("a")]), *t.shape[at:]]
        return g.broadcast(t, shape, [k if k < at else k + 1 for k in range(t.ndim)])
    if kind == "reduce" and t.ndim:
        return g.reduce(rng.choice(["sum", "max", "min"]), t, *rng.sample(range(t.ndim), rng.randint(1, t.ndim)))
    if kind == "row" and t.ndim:
        return g.op("sub", t, g.keep(rng.choice(["sum", "max"]), t, d))
    if kind == "slice" and t.ndim and isinstance(t.shape[d], int) and t.shape[d] > 2:
        shape = list(t.shape)
        shape[d] = t.shape[d] - 2
        return g.slice(t, [1 if k == d else 0 for k in range(t.ndim)], shape)
    if kind == "pad" and t.ndim:
        shape = list(t.shape)
        shape[d] = sizes.add(t.shape[d], 3)
        return g.pad(t, [2 if k == d else 0 for k in range(t.ndim)], shape, 1.5 if t.dtype.is_float else 2)
    if kind == "cat" and t.ndim:
        return g.cat(d, t, t)
    if kind == "flatten" and t.ndim > 1:
        d = rng.randrange(t.ndim - 1)
        return g.reshape(t, *t.shape[:d], sizes.mul(t.shape[d], t.shape[d + 1]), *t.shape[d + 2 :])
    if kind == "unsqueeze" and t.ndim < 3:
        return g.reshape(t, *t.shape[:d], 1, *t.shape[d:])
    return g.op("add", t, g.input(*[1 if rng.random() < 0.3 and n != 1 else n for n in t.shape], dtype=t.dtype))


# ---- running them ---------------------------------------------------------------------------------------------------------------------------


def make_inputs(segment: KernelSegment, binding: Mapping[str, int], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for t in segment.inputs:
        shape = [sizes.evaluate(n, binding) for n in t.shape]
        if t.dtype.is_float:
            made.append(torch.randn(shape, generator=generator).to(t.dtype.torch))
        else:
            made.append(torch.randint(0 if t.dtype is BOOL else -9, 2 if t.dtype is BOOL else 9, shape, generator=generator).to(t.dtype.torch))
    return made


def reference(segment: KernelSegment, inputs: Sequence[torch.Tensor], binding: Mapping[str, int], scalars: Scalars = NONE) -> list[torch.Tensor]:
    """Node by node in PyTorch."""
    values = dict(zip(segment.inputs, inputs, strict=True))
    for node in segment.nodes:
        values[node.out] = evaluate_node(node, values.__getitem__, lambda s: sizes.evaluate(s, binding), lambda s: scalar_value(s, binding, scalars))
    return [values[t].contiguous() for t in segment.outputs]


def empty_outputs(segment: KernelSegment, binding: Mapping[str, int]) -> list[torch.Tensor]:
    """Outputs filled with what no result should be."""
    return [torch.full([sizes.evaluate(n, binding) for n in t.shape], 77, dtype=t.dtype.torch) for t in segment.outputs]


def interpreted(segment: KernelSegment, inputs: Sequence[torch.Tensor], binding: Mapping[str, int], scalars: Scalars = NONE) -> list[torch.Tensor]:
    kernel, outputs = tile(segment), empty_outputs(segment, binding)
    given = [scalar_value(s, binding, scalars) for s in kernel.scalar_args]
    interpret(kernel, [*inputs, *outputs], given, [sizes.evaluate(n, binding) for n in kernel.size_args])
    return outputs


def compile_all(segments: Sequence[KernelSegment], cache_dir: Path) -> list[tuple[TileKernel, object]]:
    """Tile programs with their compiled functions."""
    kernels = [tile(s) for s in segments]
    names = [kernel_name(k) for k in kernels]
    paths = build({n: emit_cpp(k, n) for n, k in zip(names, kernels, strict=True)}, cache_dir=cache_dir)
    return [(k, load(paths[n], n, k.signature)) for n, k in zip(names, kernels, strict=True)]


def call(compiled: tuple[TileKernel, object], tensors: Sequence[torch.Tensor], binding: Mapping[str, int], scalars: Scalars = NONE) -> None:
    kernel, function = compiled
    given = [scalar_value(s, binding, scalars) for s in kernel.scalar_args]
    pointers = [t.data_ptr() for t in tensors]
    function(*pointers, *given, *(sizes.evaluate(n, binding) for n in kernel.size_args))  # type: ignore[operator]


def assert_same(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], what: str = "") -> None:
    """Integers exactly; floats to a few units of their precision, as sums may be ordered differently."""
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, (what, a.shape, b.shape, a.dtype, b.dtype)
        tolerance = {torch.float32: 2e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(a.dtype, 0)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * 2, equal_nan=True, msg=lambda m: f"{what}\n{m}")
