"""The memory-bound programs of bench/kernels.py: each as a FusionDefinition, as eager PyTorch, and as what it should give in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from interfuse import DataType, FusionDefinition
from interfuse.ir.dtypes import from_torch

BF, F32 = DataType.BFloat16, DataType.Float
Tensors = Sequence[torch.Tensor]
EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Row:
    """`inputs(device, shrink)` makes data, `shrink` times fewer rows; `program(ops, fd, handles)` gives output handles.

    `eager` is what a user would write; `exact` the reference on doubles (`eager`, where that is None). `goal`: % of copy on an H200.
    """

    name: str
    goal: float | None
    inputs: Callable[[str, int], list[torch.Tensor]]
    program: Callable[..., Sequence[Any]]
    eager: Callable[..., Any]
    exact: Callable[..., Any] | None = None
    on_cpu: bool = True


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Callable[[str], torch.Tensor]:
    def make(device: str) -> torch.Tensor:
        return (torch.randn(shape, device=device, dtype=torch.float32) * scale).to(dtype)

    return make


def rows_of(m: int, n: int, *shapes: str) -> Callable[[str, int], list[torch.Tensor]]:
    """Tensors [m, n] for "mn", [n] for "n", [m] in float for "m"."""

    def make(device: str, shrink: int) -> list[torch.Tensor]:
        rows = max(1, m // shrink)
        sizes = {"mn": (rows, n), "n": (n,), "m": (rows,)}
        return [normal(*sizes[s], dtype=torch.float32 if s == "m" else torch.bfloat16)(device) for s in shapes]

    return make


def over_rows(fd: FusionDefinition, vector: Any) -> Any:
    """[n] in float as [1, n]."""
    return fd.ops.broadcast(fd.ops.cast(vector, F32), [True, False])


# ---- pointwise ------------------------------------------------------------------------------------------------------------------------------


def gelu_bias(fd: FusionDefinition, x: Any, b: Any) -> Sequence[Any]:
    o = fd.ops
    v = o.add(o.cast(x, F32), over_rows(fd, b))
    inner = o.mul(o.add(v, o.mul(o.mul(o.mul(v, v), v), 0.044715)), 0.7978845608028654)
    return [o.cast(o.mul(o.mul(v, 0.5), o.add(o.tanh(inner), 1.0)), BF)]


def silu_mul(fd: FusionDefinition, x: Any, y: Any) -> Sequence[Any]:
    o = fd.ops
    return [o.cast(o.mul(o.silu(o.cast(x, F32)), o.cast(y, F32)), BF)]


def transpose(fd: FusionDefinition, x: Any) -> Sequence[Any]:
    o = fd.ops
    return [o.cast(o.add(o.mul(o.cast(o.permute(x, [1, 0]), F32), 2.0), 1.0), BF)]


def sines(fd: FusionDefinition, x: Any) -> Sequence[Any]:
    for _ in range(10):
        x = fd.ops.add(fd.ops.mul(fd.ops.sin(x), 1.1), 0.3)
    return [x]


def eager_sines(x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = torch.sin(x) * 1.1 + 0.3
    return x


def rope(fd: FusionDefinition, x: Any, cos: Any, sin: Any) -> Sequence[Any]:
    """x [b, t, d] turned by the angles of [t, d/2]."""
    o = fd.ops
    b, t, d = x.tensor.shape
    first = o.cast(o.slice(x, [0, 0, 0], [b, t, d // 2]), F32)
    second = o.cast(o.slice(x, [0, 0, d // 2], [b, t, d]), F32)
    c, s = (o.broadcast(o.cast(v, F32), [True, False, False]) for v in (cos, sin))
    left = o.sub(o.mul(first, c), o.mul(second, s))
    right = o.add(o.mul(second, c), o.mul(first, s))
    return [o.cast(o.cat([left, right], 2), BF)]


def eager_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


# ---- rows -----------------------------------------------------------------------------------------------------------------------------------


def normalised(fd: FusionDefinition, f: Any, w: Any, b: Any) -> Any:
    """Layer norm of a float [m, n], in float."""
    o = fd.ops
    var, mean = o.var_mean(f, [1], correction=0, keepdim=True)
    y = o.mul(o.sub(f, mean), o.rsqrt(o.add(var, EPS)))
    return o.add(o.mul(y, over_rows(fd, w)), over_rows(fd, b))


def layernorm(fd: FusionDefinition, x: Any, w: Any, b: Any) -> Sequence[Any]:
    return [fd.ops.cast(normalised(fd, fd.ops.cast(x, F32), w, b), BF)]


def add_layernorm(fd: FusionDefinition, x: Any, r: Any, w: Any, b: Any) -> Sequence[Any]:
    o = fd.ops
    h = o.cast(o.add(o.cast(x, F32), o.cast(r, F32)), BF)
    return [o.cast(normalised(fd, o.cast(h, F32), w, b), BF), h]


def eager_add_layernorm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    h = x + r
    return [F.layer_norm(h, (h.shape[-1],), w, b, EPS), h]


def exact_add_layernorm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    h = (x + r).to(torch.bfloat16).to(x.dtype)
    return [F.layer_norm(h, (h.shape[-1],), w, b, EPS), h]


def rmsnorm(fd: FusionDefinition, x: Any, w: Any) -> Sequence[Any]:
    o = fd.ops
    f = o.cast(x, F32)
    square = o.div(o.sum(o.mul(f, f), [1], keepdim=True), float(x.tensor.shape[1]))
    return [o.cast(o.mul(o.mul(f, o.rsqrt(o.add(square, EPS))), over_rows(fd, w)), BF)]


def softmax(fd: FusionDefinition, x: Any) -> Sequence[Any]:
    o = fd.ops
    f = o.cast(x, F32)
    e = o.exp(o.sub(f, o.max(f, [1], keepdim=True)))
    return [o.cast(o.div(e, o.sum(e, [1], keepdim=True)), BF)]


def cross_entropy(fd: FusionDefinition, x: Any, target: Any) -> Sequence[Any]:
    o = fd.ops
    m, n = x.tensor.shape
    f = o.cast(x, F32)
    top = o.max(f, [1])
    total = o.sum(o.exp(o.sub(f, o.broadcast(top, [False, True]))), [1])
    position = o.broadcast(o.iota(n, dtype=DataType.Int), [True, False])
    at_target = o.sum(o.where(o.eq(position, o.broadcast(target, [False, True])), f, 0.0), [1])
    return [o.div(o.sum(o.sub(o.add(o.log(total), top), at_target), [0]), float(m))]


def batchnorm(fd: FusionDefinition, x: Any, w: Any, b: Any) -> Sequence[Any]:
    o = fd.ops
    f = o.cast(x, F32)
    var, mean = o.var_mean(f, [0, 2, 3], correction=0, keepdim=True)
    shaped = [o.broadcast(o.cast(v, F32), [True, False, True, True]) for v in (w, b)]
    y = o.mul(o.sub(f, mean), o.mul(o.rsqrt(o.add(var, EPS)), shaped[0]))
    return [o.cast(o.add(y, shaped[1]), BF), o.squeeze(mean, [0, 2, 3]), o.squeeze(var, [0, 2, 3])]


def eager_batchnorm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    y, mean, rstd = torch.native_batch_norm(x, w, b, None, None, True, 0.1, EPS)
    return [y, mean, 1.0 / (rstd * rstd) - EPS]


def column_sum(fd: FusionDefinition, x: Any) -> Sequence[Any]:
    return [fd.ops.cast(fd.ops.sum(fd.ops.cast(x, F32), [0]), BF)]


def row_sum(fd: FusionDefinition, x: Any) -> Sequence[Any]:
    return [fd.ops.cast(fd.ops.sum(fd.ops.cast(x, F32), [1]), BF)]


# ---- backward -------------------------------------------------------------------------------------------------------------------------------


def layernorm_backward(fd: FusionDefinition, dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Sequence[Any]:
    o = fd.ops
    n = float(x.tensor.shape[1])
    d, f = o.cast(dy, F32), o.cast(x, F32)
    mu, r = o.broadcast(mean, [False, True]), o.broadcast(rstd, [False, True])
    hat = o.mul(o.sub(f, mu), r)
    wd = o.mul(d, over_rows(fd, w))
    along = o.div(o.sum(o.mul(hat, wd), [1], keepdim=True), n)
    level = o.div(o.sum(wd, [1], keepdim=True), n)
    dx = o.mul(o.sub(o.sub(wd, o.mul(hat, along)), level), r)
    return [o.cast(dx, BF), o.cast(o.sum(o.mul(d, hat), [0]), BF), o.cast(o.sum(d, [0]), BF)]


def eager_layernorm_backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
    shape = [x.shape[-1]]
    mean, rstd = mean.unsqueeze(1), rstd.unsqueeze(1)
    if x.device.type == "cpu":  # there ATen wants one type for all
        mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
    return torch.ops.aten.native_layer_norm_backward(dy, x, shape, mean, rstd, w, w, [True, True, True])


def exact_layernorm_backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> list[torch.Tensor]:
    hat = (x - mean[:, None]) * rstd[:, None]
    wd = dy * w
    dx = (wd - hat * (hat * wd).mean(1, keepdim=True) - wd.mean(1, keepdim=True)) * rstd[:, None]
    return [dx, (dy * hat).sum(0), dy.sum(0)]


def rmsnorm_backward(fd: FusionDefinition, dy: Any, x: Any, w: Any, rstd: Any) -> Sequence[Any]:
    o = fd.ops
    d, f, r = o.cast(dy, F32), o.cast(x, F32), o.broadcast(rstd, [False, True])
    hat, wd = o.mul(f, r), o.mul(d, over_rows(fd, w))
    along = o.div(o.sum(o.mul(hat, wd), [1], keepdim=True), float(x.tensor.shape[1]))
    dx = o.mul(o.sub(wd, o.mul(hat, along)), r)
    return [o.cast(dx, BF), o.cast(o.sum(o.mul(d, hat), [0]), BF)]


def eager_rmsnorm_backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> list[torch.Tensor]:
    d, f, r = dy.to(rstd.dtype), x.to(rstd.dtype), rstd[:, None]
    hat, wd = f * r, d * w.to(rstd.dtype)
    dx = (wd - hat * (hat * wd).mean(1, keepdim=True)) * r
    return [dx.to(x.dtype), (d * hat).sum(0).to(x.dtype)]


def gelu_bias_backward(fd: FusionDefinition, dy: Any, x: Any, b: Any) -> Sequence[Any]:
    o = fd.ops
    v = o.add(o.cast(x, F32), over_rows(fd, b))
    square = o.mul(v, v)
    t = o.tanh(o.mul(o.mul(v, o.add(o.mul(square, 0.044715), 1.0)), 0.7978845608028654))
    slope = o.mul(o.add(o.mul(square, 3 * 0.044715), 1.0), 0.7978845608028654)
    inner = o.mul(o.mul(o.mul(v, 0.5), o.sub(1.0, o.mul(t, t))), slope)
    dx = o.mul(o.cast(dy, F32), o.add(o.mul(o.add(t, 1.0), 0.5), inner))
    return [o.cast(dx, BF), o.cast(o.sum(dx, [0]), BF)]


def eager_gelu_bias_backward(dy: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    dx = torch.ops.aten.gelu_backward(dy, x + b, approximate="tanh")
    return [dx, dx.sum(0)]


def softmax_backward(fd: FusionDefinition, dy: Any, y: Any) -> Sequence[Any]:
    o = fd.ops
    d, f = o.cast(dy, F32), o.cast(y, F32)
    return [o.cast(o.mul(o.sub(d, o.sum(o.mul(d, f), [1], keepdim=True)), f), BF)]


def exact_softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (dy - (dy * y).sum(1, keepdim=True)) * y


# ---- the list -------------------------------------------------------------------------------------------------------------------------------

M, N = 16384, 8192


def entropy_inputs(device: str, shrink: int) -> list[torch.Tensor]:
    m = 8192 // shrink
    return [normal(m, 32768)(device), torch.randint(0, 32768, (m,), device=device)]


def image_inputs(device: str, shrink: int) -> list[torch.Tensor]:
    return [normal(max(1, 64 // shrink), 256, 56, 56)(device), normal(256, dtype=torch.float32)(device), normal(256, dtype=torch.float32)(device)]


def rope_inputs(device: str, shrink: int) -> list[torch.Tensor]:
    b, t, d = max(1, 256 // shrink), 4096, 128
    angle = torch.rand(t, d // 2, device=device) * 6.28
    return [normal(b, t, d)(device), angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)]


def statistic_inputs(*shapes: str) -> Callable[[str, int], list[torch.Tensor]]:
    """As `rows_of`, with reciprocal deviations near 1 as the last."""
    make = rows_of(M, N, *shapes)

    def inputs(device: str, shrink: int) -> list[torch.Tensor]:
        made = make(device, shrink)
        made[-1] = made[-1].abs() * 0.1 + 0.9
        return made

    return inputs


def backward_of_softmax(device: str, shrink: int) -> list[torch.Tensor]:
    dy, y = rows_of(M, N, "mn", "mn")(device, shrink)
    return [dy, torch.softmax(y.float(), 1).to(torch.bfloat16)]


def _norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, EPS)


def _rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, EPS)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 1)


ROWS = [
    Row("gelu(x + bias)", 97, rows_of(M, N, "mn", "n"), gelu_bias, lambda x, b: F.gelu(x + b, approximate="tanh")),
    Row("silu(x) * y", 99, rows_of(M, N, "mn", "mn"), silu_mul, lambda x, y: F.silu(x) * y),
    Row("layernorm", 92, rows_of(M, N, "mn", "n", "n"), layernorm, _norm),
    Row("rmsnorm", 98, rows_of(M, N, "mn", "n"), rmsnorm, _rms),
    Row("residual + layernorm", 97, rows_of(M, N, "mn", "mn", "n", "n"), add_layernorm, eager_add_layernorm, exact_add_layernorm),
    Row("softmax 8192", 94, rows_of(M, N, "mn"), softmax, _softmax),
    Row("softmax 131072", 78, rows_of(1024, 131072, "mn"), softmax, _softmax),
    Row("sum dim 0", 87, rows_of(M, N, "mn"), column_sum, lambda x: x.sum(0)),
    Row("sum dim 1", 95, rows_of(M, N, "mn"), row_sum, lambda x: x.sum(1)),
    Row("sum dim 0 tall", 83, rows_of(1048576, 128, "mn"), column_sum, lambda x: x.sum(0)),
    Row("transpose * 2 + 1", 93, rows_of(M, N, "mn"), transpose, lambda x: (x.t() * 2 + 1).contiguous()),
    Row("cross entropy", 88, entropy_inputs, cross_entropy, lambda x, t: F.cross_entropy(x.float(), t), lambda x, t: F.cross_entropy(x, t)),
    Row("ten sines", 60, lambda device, shrink: [normal(M * 4096 // shrink, dtype=torch.float32, scale=3.0)(device)], sines, eager_sines),
    Row("batch norm", 65, image_inputs, batchnorm, eager_batchnorm),
    Row("layernorm backward", 91, statistic_inputs("mn", "mn", "n", "m", "m"), layernorm_backward,
        eager_layernorm_backward, exact_layernorm_backward),
    Row("rmsnorm backward", 92, statistic_inputs("mn", "mn", "n", "m"), rmsnorm_backward, eager_rmsnorm_backward),
    Row("gelu + bias backward", 94, rows_of(M, N, "mn", "mn", "n"), gelu_bias_backward, eager_gelu_bias_backward),
    Row("softmax backward", 100, backward_of_softmax, softmax_backward,
        lambda dy, y: torch._softmax_backward_data(dy, y, 1, dy.dtype), exact_softmax_backward),
    Row("rope", None, rope_inputs, rope, eager_rope),
    *(Row(f"softmax N={n}", None, rows_of(2**27 // n, n, "mn"), softmax, _softmax, on_cpu=n in (1024, 65536)) for n in
      (256, 1024, 2048, 4096, 16384, 32768, 65536, 262144)),
]  # fmt: skip


def define(row: Row, inputs: Tensors) -> FusionDefinition:
    """The row's program for inputs of these shapes, all sizes fixed."""
    with FusionDefinition() as fd:
        handles = [fd.define_tensor(list(t.shape), contiguity=True, dtype=_kind(t)) for t in inputs]
        for out in row.program(fd, *handles):
            fd.add_output(out)
    return fd


def _kind(tensor: torch.Tensor) -> DataType:
    found = from_torch(tensor.dtype)
    assert found is not None
    return found
