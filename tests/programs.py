"""The programs that acceptance tests share: how each is written and placed, its *global* inputs, plain PyTorch, and the collectives it may issue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.nn.functional import linear

from interfuse import DataType, FusionDefinition, ParallelType, TensorView
from interfuse.multidevice import DeviceMesh

F32, F64, BF16, F16 = DataType.Float, DataType.Double, DataType.BFloat16, DataType.Half
PARALLEL = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)

Where = Mapping[Any, str]  # dim → axis; "r" stands for the reduced loop, ("whole", dim) for a dim that is spread without a split
Handles = tuple[TensorView, ...]


@dataclass(frozen=True)
class Case:
    """`define` gives the handles that `where` places, None leaving one to propagation. `splits[i]` says where output i is to lie."""

    name: str
    mesh: DeviceMesh
    define: Callable[[FusionDefinition], Handles]
    where: Sequence[Where | None]
    inputs: Callable[[], list[Tensor]]
    reference: Callable[..., Tensor | tuple[Tensor, ...]]
    issues: tuple[tuple[str, str], ...] = ()
    splits: tuple[Where, ...] = ({},)
    style: str = "methods"

    @property
    def collectives(self) -> list[tuple[str, str]]:
        """Kinds and axes, in order; axes of size 1 need none."""
        return [(kind, axis) for kind, axis in self.issues if self.mesh.axis_size(axis) > 1]

    def make(self) -> FusionDefinition:
        """A new definition."""
        if self.style == "class":
            return _Scheduled(self)
        with FusionDefinition() as fd:
            for tensor, where in zip(self.define(fd), self.where, strict=True):
                if where is not None:
                    (by_torch if self.style == "torch" else by_methods)(tensor, self.mesh, where)
        return fd

    def wanted(self) -> list[Tensor]:
        """*Global* outputs of plain PyTorch."""
        result = self.reference(*self.inputs())
        return [result] if isinstance(result, Tensor) else list(result)

    def __str__(self) -> str:
        return self.name


class _Scheduled(FusionDefinition):
    """A case in the class style."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def definition(self) -> None:
        self.handles = self.case.define(self)

    def multidevice_schedule(self) -> None:
        for tensor, where in zip(self.handles, self.case.where, strict=True):
            if where is not None:
                self.sched._set_device_mesh(tensor, self.case.mesh)
                for loop, factor, parallel in reversed(_loops(tensor, self.case.mesh, where)):
                    if factor is not None:
                        self.sched.split(tensor, loop, factor, False)
                    self.sched.parallelize(tensor, loop, parallel)
                self.sched.set_allocation_as_loop(tensor)


def by_methods(tensor: TensorView, mesh: DeviceMesh, where: Where) -> None:
    tensor.set_device_mesh(mesh)
    for loop, factor, parallel in reversed(_loops(tensor, mesh, where)):
        if factor is not None:
            tensor.outer_split(loop, factor)
        tensor.axis(loop).parallelize(parallel)


def by_torch(tensor: TensorView, mesh: DeviceMesh, where: Where) -> None:
    cut = {axis: dim for dim, axis in where.items()}
    tensor.set_placements(mesh, [Shard(cut[axis]) if axis in cut else Replicate() for axis in mesh.names])


def _loops(tensor: TensorView, mesh: DeviceMesh, where: Where) -> list[tuple[int, int | None, ParallelType]]:
    """(loop, split factor, parallel type), first loop first."""
    loops = [loop.is_reduction() for loop in tensor.get_loop_domain()]
    kept, reduced = ([i for i, r in enumerate(loops) if r is want] for want in (False, True))
    found = []
    for dim, axis in where.items():
        whole = isinstance(dim, tuple)
        loop = reduced[0] if dim == "r" else kept[dim[1] if whole else dim]
        found.append((loop, None if whole else mesh.axis_size(axis), PARALLEL[mesh.ndim - 1 - mesh.names.index(axis)]))
    return sorted(found, key=lambda item: item[0])


def line(d: int) -> DeviceMesh:
    """d ranks along x."""
    return DeviceMesh(torch.arange(d))


def ints(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32, most: int = 2) -> Tensor:
    """Integers from -most to most."""
    return torch.randint(-most, most + 1, tuple(shape), generator=torch.Generator().manual_seed(1000 * seed + sum(shape))).to(dtype)


def tensors(*shapes: Sequence[int], dtype: DataType = F32, most: int = 2) -> Callable[[], list[Tensor]]:
    return lambda: [ints(shape, seed, dtype.torch, most) for seed, shape in enumerate(shapes, start=1)]


def piece(whole: Tensor, mesh: DeviceMesh, where: Where, rank: int) -> Tensor:
    """The shard of a rank by torch.chunk's rule, said without the product's arithmetic."""
    for dim, axis in where.items():
        n, parts, at = whole.shape[dim], mesh.axis_size(axis), (mesh.coordinates(rank) or {})[axis]
        chunk = -(-n // parts)
        whole = whole.narrow(dim, min(at * chunk, n), max(0, min(chunk, n - at * chunk)))
    return whole


# ---- matrix products -------------------------------------------------------------------------------------------------------------------------


def column_linear(d: int, k: int = 5, n: int | None = None, style: str = "methods", placed: str = "both", dtype: DataType = BF16) -> Case:
    """[b, s, k] × [n, k] with bias: the weight's rows are split."""
    n = d * k if n is None else n

    def define(fd: FusionDefinition) -> Handles:
        x = fd.define_tensor([-1, -1, k], dtype=dtype, contiguity=True)
        w, b = fd.define_tensor([n, k], dtype=dtype, contiguity=True), fd.define_tensor([n], dtype=dtype)
        y = fd.ops.linear(x, w, b)
        fd.add_output(y)
        return x, w, b, y

    where: list[Where | None] = [{}, {0: "x"}, {0: "x"}, {2: "x"}] if placed == "both" else [None, {0: "x"}, None, None]
    return Case(
        f"column linear {k} to {n}, {placed}, {style} on {d}",
        line(d),
        define,
        where,
        tensors((2, 3, k), (n, k), (n,), dtype=dtype),
        linear,
        (),
        ({2: "x"},),
        style,
    )


def row_linear(d: int, k: int | None = None, bias: bool = False, style: str = "methods", placed: str = "both", rows: int = 3) -> Case:
    """[rows, k] × [4, k]: the contracted dim is split; a bias must be added once."""
    k = d * 3 if k is None else k
    first = -1 if placed == "both" else rows  # what is given alone must be worth more than what moving it would save

    def define(fd: FusionDefinition) -> Handles:
        x, w = fd.define_tensor([first, k], dtype=BF16, contiguity=True), fd.define_tensor([4, k], dtype=BF16, contiguity=True)
        y = fd.ops.linear(x, w, fd.define_tensor([4], dtype=BF16) if bias else None)
        fd.add_output(y)
        return x, w, y

    where: list[Where | None] = {"both": [{1: "x"}, {1: "x"}, None], "loop": [{1: "x"}, {1: "x"}, {"r": "x"}], "weight": [None, {1: "x"}, None]}[
        placed
    ]
    shapes = [(rows, k), (4, k)] + [(4,)] * bias
    name = f"row linear {k}{' bias' * bias}, {placed}, {style} on {d}"
    return Case(name, line(d), define, where, tensors(*shapes, dtype=BF16), linear, (("all_reduce", "x"),), style=style)


def linear_scatter(
    d: int, t: int | None = None, k: int | None = None, bias: bool = True, form: str = "linear", style: str = "methods", loop: bool = True
) -> Case:
    """[3, t, k] × [7, k]: the contracted dim is split, and so is dim 1 of the result."""
    t, k = 5 * d if t is None else t, 7 * d if k is None else k

    def define(fd: FusionDefinition) -> Handles:
        x = fd.define_tensor([3, t, k], dtype=BF16, contiguity=True)
        w = fd.define_tensor([7, k] if form == "linear" else [k, 7], dtype=BF16, contiguity=True)
        if form == "linear":
            y = fd.ops.linear(x, w, fd.define_tensor([7], dtype=BF16) if bias else None)
        else:
            y = fd.ops.matmul(x, w)
        fd.add_output(y)
        return x, w, y

    k_dim = 1 if form == "linear" else 0
    where = [{2: "x"}, {k_dim: "x"}, {1: "x", "r": "x"} if loop else {1: "x"}]
    shapes = [(3, t, k), (7, k) if form == "linear" else (k, 7)] + [(7,)] * (bias and form == "linear")
    name = f"{form} scatter {t} {k}{' bias' * (bias and form == 'linear')}, {style} on {d}"
    most = 2 if k <= 56 else 1  # sums stay below 256, where bfloat16 knows every integer
    return Case(
        name,
        line(d),
        define,
        where,
        tensors(*shapes, dtype=BF16, most=most),
        linear if form == "linear" else torch.matmul,
        (("reduce_scatter", "x"),),
        ({1: "x"},),
        style,
    )


def product(d: int, layout: str, result: str, m: int | None = None, k: int | None = None) -> Case:
    """A matrix product of [m, k] and [k, 3], operands transposed as `layout` says; `result` is none, gather, reduce or scatter."""
    m, k = 2 * d if m is None else m, 3 * d if k is None else k
    a_shape = (m, k) if layout[0] == "N" else (k, m)
    b_shape = (k, 3) if layout[1] == "N" else (3, k)
    rows = result in ("none", "gather")

    def define(fd: FusionDefinition) -> Handles:
        a, b = fd.define_tensor(a_shape, dtype=F32, contiguity=True), fd.define_tensor(b_shape, dtype=F32, contiguity=True)
        left = a if layout[0] == "N" else fd.ops.permute(a, [1, 0])
        right = b if layout[1] == "N" else fd.ops.permute(b, [1, 0])
        y = fd.ops.matmul(left, right)
        fd.add_output(y)
        return a, b, y

    a_where: Where = {int((layout[0] == "T") == rows): "x"}
    b_where: Where = {} if rows else {int(layout[1] == "T"): "x"}
    where: list[Where | None] = [a_where, b_where, {"none": None, "gather": {}, "reduce": {}, "scatter": {0: "x"}}[result]]
    issues = {"none": (), "gather": (("all_gather", "x"),), "reduce": (("all_reduce", "x"),), "scatter": (("reduce_scatter", "x"),)}[result]
    splits: Where = {0: "x"} if result in ("none", "scatter") else {}
    transposes = [(lambda t: t) if c == "N" else Tensor.t for c in layout]
    reference = lambda a, b: transposes[0](a) @ transposes[1](b)  # noqa: E731
    return Case(f"product {layout} {m} {k}, {result} on {d}", line(d), define, where, tensors(a_shape, b_shape), reference, issues, (splits,))


def batched_weight(d: int, style: str = "methods") -> Case:
    """[d, e, e] weights and [d, e] biases whose leading dim is a whole mesh dim."""

    def define(fd: FusionDefinition) -> Handles:
        x, w, b = fd.define_tensor([-1, 5]), fd.define_tensor([d, 4, 5]), fd.define_tensor([d, 4])
        y = fd.ops.linear(x, w, b)
        fd.add_output(y)
        return x, w, b, y

    whole: Where = {("whole", 0): "x"} if style != "torch" else {0: "x"}
    reference = lambda x, w, b: torch.einsum("sk,dnk->dsn", x, w) + b[:, None, :]  # noqa: E731
    name = f"weight of {d} matrices, {style} on {d}"
    return Case(name, line(d), define, [{}, whole, whole, None], tensors((3, 5), (d, 4, 5), (d, 4)), reference, (), ({0: "x"},), style)


def product_beside_ones(d: int, k: int | None = None) -> Case:
    """x * y feeds a linear; dims of size 1 stand beside the split one."""
    k = 3 * d if k is None else k

    def define(fd: FusionDefinition) -> Handles:
        x, y, w = fd.define_tensor([1, 1, k], dtype=BF16), fd.define_tensor([1, 1, k], dtype=BF16), fd.define_tensor([6, k], dtype=BF16)
        out = fd.ops.linear(fd.ops.cast(fd.ops.mul(x, y), BF16), w, None)
        fd.add_output(out)
        return x, y, w

    reference = lambda x, y, w: linear(x * y, w)  # noqa: E731
    shapes = ((1, 1, k), (1, 1, k), (6, k))
    return Case(
        f"x * y, linear of {k} on {d}",
        line(d),
        define,
        [{2: "x"}, {2: "x"}, {1: "x"}],
        tensors(*shapes, dtype=BF16),
        reference,
        (("all_reduce", "x"),),
    )


# ---- moves -----------------------------------------------------------------------------------------------------------------------------------


def move(
    mesh: DeviceMesh,
    shape: Sequence[int],
    before: Where,
    after: Where,
    issues: Iterable[tuple[str, str]],
    op: str = "set",
    style: str = "methods",
    symbolic: bool = False,
) -> Case:
    """One tensor from one placement to another."""

    def define(fd: FusionDefinition) -> Handles:
        x = fd.define_tensor([-1] * len(shape) if symbolic else shape)
        y = getattr(fd.ops, op)(x)
        fd.add_output(y)
        return x, y

    name = f"{op} {list(shape)}{' symbolic' * symbolic} {dict(before)} to {dict(after)}, {style} on {mesh.nested()}"
    reference = {"set": lambda x: x, "relu": torch.relu}[op]
    return Case(name, mesh, define, [before, after], tensors(shape, most=9), reference, tuple(issues), (after,), style)


def expanded(d: int) -> Case:
    """A gathered tensor that repeats along a new dim."""

    def define(fd: FusionDefinition) -> Handles:
        x = fd.define_tensor([d])
        y = fd.ops.set(fd.ops.expand(fd.ops.broadcast(x, [False, True]), [d, 3]))
        fd.add_output(y)
        return x, y

    return Case(f"expanded set on {d}", line(d), define, [{0: "x"}, {}], tensors((d,)), lambda x: x[:, None].expand(d, 3), (("all_gather", "x"),))


# ---- reductions ------------------------------------------------------------------------------------------------------------------------------

TORCH_REDUCE: dict[str, Callable[[Tensor, int], Tensor]] = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}


def reduced(d: int, op: str, result: str, n: int | None = None, m: int | None = None, style: str = "methods", loop: bool = False) -> Case:
    """[n, 3, m] reduced over dim 0; `result` says whether dim 0 is split and how the result lies."""
    n, m = 2 * d if n is None else n, 4 * d if m is None else m

    def define(fd: FusionDefinition) -> Handles:
        x = fd.define_tensor([n, 3, m])
        y = getattr(fd.ops, op)(x, [0])
        fd.add_output(y)
        return x, y

    before: Where = {2: "x"} if result == "unsplit" else {0: "x"}
    partial: Where = {"r": "x"} if loop else {}
    after: Where | None = {"whole": {**partial}, "scatter": {1: "x", **partial}, "unsplit": None, "free": None}[result]
    issues = {"whole": "all_reduce", "free": "all_reduce", "scatter": "reduce_scatter"}.get(result)
    splits: Where = {1: "x"} if result in ("scatter", "unsplit") else {}
    name = f"{op} [{n}, 3, {m}], {result}{' loop' * loop}, {style} on {d}"
    return Case(
        name,
        line(d),
        define,
        [before, after],
        tensors((n, 3, m)),
        lambda x: TORCH_REDUCE[op](x, 0),
        ((issues, "x"),) if issues else (),
        (splits,),
        style,
    )


def mean(d: int, n: int) -> Case:
    """A sum over uneven shards divided by the global size."""

    def define(fd: FusionDefinition) -> Handles:
        x = fd.define_tensor([3, n])
        y = fd.ops.div(fd.ops.sum(x, [1]), x.size(1))
        fd.add_output(y)
        return (x,)

    return Case(f"mean of {n} on {d}", line(d), define, [{1: "x"}], tensors((3, n)), lambda x: x.sum(1) / n, (("all_reduce", "x"),))


def var_mean(d: int, n: int, split: bool = True) -> Case:
    """Values whose mean is an integer, so that every sum is exact."""

    def define(fd: FusionDefinition) -> Handles:
        x = fd.define_tensor([4, n])
        for y in fd.ops.var_mean(x, [1], correction=1):
            fd.add_output(y)
        return (x,)

    def inputs() -> list[Tensor]:
        x = ints((4, n), 1, most=3)
        x[:, 0] -= x.sum(1) % n
        return [x]

    def reference(x: Tensor) -> tuple[Tensor, Tensor]:
        m = x.sum(1, keepdim=True) / n
        return ((x - m) ** 2).sum(1) / (n - 1), m[:, 0]

    issues = (("all_reduce", "x"),) * 2 if split else ()
    where: Where = {1: "x"} if split else {0: "x"}
    splits = ({}, {}) if split else ({0: "x"}, {0: "x"})
    return Case(f"var_mean of {n}{'' if split else ' whole'} on {d}", line(d), define, [where], inputs, reference, issues, splits)


# ---- feed-forward ----------------------------------------------------------------------------------------------------------------------------


def _mlp(dtype: DataType, shape: Sequence[int], h: int, f: int, bias: bool, residual: bool, apart: bool) -> Callable[[FusionDefinition], Handles]:
    def define(fd: FusionDefinition) -> Handles:
        new = lambda *s: fd.define_tensor(s, dtype=dtype, contiguity=True)  # noqa: E731
        x, w1, w2 = new(*shape, h), new(f, h), new(h, f)
        b1, b2 = (new(f), new(h)) if bias else (None, None)
        r = new(*shape, h) if apart else x
        y = fd.ops.linear(fd.ops.relu(fd.ops.linear(x, w1, b1)), w2, b2)
        out = fd.ops.add(y, r) if residual else y
        fd.add_output(out)
        return x, w1, w2, b1 if b1 is not None else w1, r, out  # type: ignore[return-value]

    return define


def _mlp_reference(bias: bool, residual: bool, apart: bool) -> Callable[..., Tensor]:
    def reference(x: Tensor, w1: Tensor, w2: Tensor, *rest: Tensor) -> Tensor:
        b1, b2 = rest[:2] if bias else (None, None)
        y = linear(torch.relu(linear(x, w1, b1)), w2, b2)
        return y.float() + (rest[-1] if apart else x).float() if residual else y

    return reference


def sequence_mlp(
    d: int,
    s: int | None = None,
    f: int | None = None,
    rank3: bool = False,
    dtype: DataType = F32,
    apart: bool = False,
    style: str = "methods",
    whole_out: bool = False,
) -> Case:
    """Sequence parallelism: tokens are split outside, the feed-forward dim inside. Nothing but inputs is placed."""
    s, f, h = 2 * d if s is None else s, 4 * d if f is None else f, 6
    shape = (2, s) if rank3 else (s,)
    t = len(shape) - 1
    where: list[Where | None] = [{t: "x"}, {0: "x"}, {1: "x"}, {0: "x"}, {t: "x"} if apart else None, {} if whole_out else None]
    shapes = [(*shape, h), (f, h), (h, f), (f,), (h,)] + [(*shape, h)] * apart
    issues = (("all_gather", "x"), ("all_reduce" if whole_out else "reduce_scatter", "x"))
    name = f"sequence mlp {list(shape)} {f} {dtype.short}{' apart' * apart}{' whole' * whole_out}, {style} on {d}"
    define, reference = _mlp(dtype, shape, h, f, True, True, apart), _mlp_reference(True, True, apart)
    return Case(name, line(d), define, where, tensors(*shapes, dtype=dtype, most=1), reference, issues, ({} if whole_out else {t: "x"},), style)


def mesh_mlp(ranks: Any, sequence: bool, b: int | None = None, s: int | None = None, f: int | None = None, style: str = "methods") -> Case:
    """Data parallelism over dp, tensor parallelism over tp; with `sequence` also tokens over tp."""
    mesh = DeviceMesh(torch.tensor(ranks), names=("dp", "tp"))
    dp, tp = mesh.shape
    b, s, f, h = 2 * dp if b is None else b, 3 * tp if s is None else s, 8 * tp if f is None else f, 5
    lies: Where = {0: "dp", 1: "tp"} if sequence else {0: "dp"}
    where: list[Where | None] = [lies, {0: "tp"}, {1: "tp"}, {0: "tp"}, None, None]
    issues = (("all_gather", "tp"), ("reduce_scatter", "tp")) if sequence else (("all_reduce", "tp"),)
    shapes = [(b, s, h), (f, h), (h, f), (f,), (h,)]
    name = f"{'sequence ' * sequence}mlp {b} {s} {f}, {style} on {mesh.nested()}"
    define, reference = _mlp(F32, (b, s), h, f, True, sequence, False), _mlp_reference(True, sequence, False)
    return Case(name, mesh, define, where, tensors(*shapes, most=1), reference, issues, (lies,), style)


def gated_norm_ffn(d: int, tokens: int = 12, h: int = 16, f: int = 24) -> Case:
    """rmsnorm → linear → gelu → linear → residual add with sequence parallelism; not exact."""

    def define(fd: FusionDefinition) -> Handles:
        o = fd.ops
        x, g = fd.define_tensor([tokens, h]), fd.define_tensor([h])
        w1, b1, w2, b2 = fd.define_tensor([f, h]), fd.define_tensor([f]), fd.define_tensor([h, f]), fd.define_tensor([h])
        ms = o.div(o.sum(o.mul(x, x), [1], keepdim=True), x.size(1))
        n = o.mul(o.mul(x, o.rsqrt(o.add(ms, 1e-5))), g)
        u = o.linear(n, w1, b1)
        inner = o.mul(o.add(u, o.mul(o.mul(o.mul(u, u), u), 0.044715)), 0.7978845608028654)
        a = o.mul(o.mul(u, 0.5), o.add(o.tanh(inner), 1.0))
        fd.add_output(o.add(o.linear(a, w2, b2), x))
        return x, w1, b1, w2

    def reference(x: Tensor, g: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        n = torch.nn.functional.rms_norm(x, (h,), g, eps=1e-5)
        return linear(torch.nn.functional.gelu(linear(n, w1, b1), approximate="tanh"), w2, b2) + x

    def inputs() -> list[Tensor]:
        make = torch.Generator().manual_seed(7)
        return [
            torch.randn(s, generator=make) / (s[-1] ** 0.5 if i > 1 else 1) for i, s in enumerate([(tokens, h), (h,), (f, h), (f,), (h, f), (h,)])
        ]

    return Case(
        f"norm ffn on {d}",
        line(d),
        define,
        [{0: "x"}, {0: "x"}, {0: "x"}, {1: "x"}],
        inputs,
        reference,
        (("all_gather", "x"), ("reduce_scatter", "x")),
        ({0: "x"},),
    )


# ---- all of them -----------------------------------------------------------------------------------------------------------------------------

GATHER, SCATTER, REDUCE, EXCHANGE = ("all_gather", "x"), ("reduce_scatter", "x"), ("all_reduce", "x"), ("all_to_all", "x")
STYLES = ("methods", "class", "torch")


def _on_a_line(d: int) -> Iterable[Case]:
    mesh = line(d)
    yield from (column_linear(d, style=style) for style in STYLES)
    yield from (column_linear(d, placed="weight"), row_linear(d, 12 * d, placed="weight"))
    yield from (row_linear(d, bias=bias, style=style) for bias in (False, True) for style in STYLES)
    yield row_linear(d, bias=True, placed="loop")
    yield from (linear_scatter(d, style=style) for style in ("methods", "class"))
    yield from (linear_scatter(d, style=style, loop=False, bias=False) for style in ("torch",))
    yield from (linear_scatter(d, form="matmul", style=style) for style in ("methods", "class"))
    yield from (product(d, layout, result) for layout in ("TN", "NT") for result in ("none", "gather", "reduce", "scatter"))
    yield from (batched_weight(d, style) for style in STYLES)
    yield product_beside_ones(d)
    yield from (move(mesh, [4 * d], {0: "x"}, {}, [GATHER], style=style) for style in STYLES)
    yield move(mesh, [4 * d], {0: "x"}, {}, [GATHER], symbolic=True)
    yield move(mesh, [3, 4 * d], {1: "x"}, {}, [GATHER])
    yield from (move(mesh, [2 * d, 3 * d], {a: "x"}, {1 - a: "x"}, [EXCHANGE], style=style) for a in (0, 1) for style in ("methods", "torch"))
    yield move(mesh, [2, 3 * d, 4, d], {1: "x"}, {3: "x"}, [EXCHANGE])
    yield move(mesh, [3, 4 * d], {}, {1: "x"}, [])
    yield from (move(mesh, [4 * d, 3], {0: "x"}, {}, [GATHER], op="relu", style=style) for style in ("methods", "class"))
    yield expanded(d)
    yield from (reduced(d, op, result) for op in TORCH_REDUCE for result in ("whole", "scatter", "unsplit", "free"))
    yield from (reduced(d, "sum", result, style=style, loop=style == "class") for result in ("whole", "scatter") for style in ("class", "torch"))
    yield from (sequence_mlp(d, rank3=rank3) for rank3 in (False, True))
    yield from (sequence_mlp(d, dtype=BF16, style="class"), sequence_mlp(d, apart=True, style="torch"), sequence_mlp(d, whole_out=True))
    yield from (var_mean(d, 4 * d), var_mean(d, 8, split=False))


def _uneven(d: int) -> Iterable[Case]:
    mesh = line(d)
    for n, other in ((5, 7), (7, 1), (1, 5)):
        yield from (column_linear(d, n=n), row_linear(d, k=n, bias=True, placed="loop"), row_linear(d, k=n, style="class", placed="loop"))
        yield from (linear_scatter(d, t=n, k=7 * d), linear_scatter(d, t=other, k=n, form="matmul"))
        yield from (move(mesh, [n], {0: "x"}, {}, [GATHER]), move(mesh, [3, n], {1: "x"}, {}, [GATHER]), move(mesh, [3, n], {}, {1: "x"}, []))
        yield from (move(mesh, [n, other], {a: "x"}, {1 - a: "x"}, [EXCHANGE]) for a in (0, 1))
        yield from (reduced(d, op, result, n, other) for op in TORCH_REDUCE for result in ("whole", "scatter", "unsplit"))
        yield from (product_beside_ones(d, n), mean(d, n))
        yield from (product(d, "NN", result, n, other) for result in ("none", "gather", "reduce", "scatter"))
    yield from (sequence_mlp(d, s, f) for s, f in ((5, 7), (7, 11), (1, 5), (7, 4 * d + 1), (1, 1)))
    yield from (var_mean(d, 5), var_mean(d, 7))


def _on_a_grid(grids: Iterable[Any]) -> Iterable[Case]:
    for ranks in grids:
        yield from (mesh_mlp(ranks, sequence) for sequence in (False, True))
        yield mesh_mlp(ranks, True, b=3, s=5, f=23, style="torch")
        mesh = DeviceMesh(torch.tensor(ranks))
        y, x = mesh.shape
        yield move(mesh, [2 * y, 3 * x], {0: "y", 1: "x"}, {0: "y"}, [("all_gather", "x")])
        yield move(mesh, [2 * y, 3 * x + 1, 4 * y], {0: "y", 1: "x"}, {2: "y", 1: "x"}, [("all_to_all", "y")])


GRIDS = (
    [[0, 1], [2, 3]],
    [[1, 0], [3, 2]],
    [[0, 1, 2], [3, 4, 5]],
    [[5, 3, 1], [0, 2, 4]],
    [[0, 1], [2, 3], [4, 5]],
    [[4, 1], [0, 5], [3, 2]],
    [[0, 1, 2, 3]],
    [[2, 0, 3, 1]],
)

SIZES = (1, 2, 3, 4, 8)
CASES: dict[str, Case] = {}
for _case in itertools.chain(*map(_on_a_line, SIZES), *map(_uneven, (2, 3, 4)), _on_a_grid(GRIDS)):
    assert _case.name not in CASES, _case.name
    CASES[_case.name] = _case
