"""The demo: a transformer block's feed-forward part with sequence parallelism, beside the same written by hand.

x [tokens, hidden]                    split over tokens
h = rmsnorm(x) * norm                 on each rank's tokens
y = gelu(h @ up.T + bias)             needs all tokens: an all-gather; up [ffn, hidden] is split over ffn
out = x + y @ down.T                  down [hidden, ffn] is split over ffn: partial sums; x pulls them into a reduce-scatter
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from interfuse.frontend.definition import FusionDefinition
from interfuse.frontend.domain import ParallelType
from interfuse.frontend.handles import TensorView
from interfuse.frontend.launch import World
from interfuse.ir.dtypes import DataType
from interfuse.shard.mesh import Mesh
from interfuse.view.trial import Job, Step

DTYPES = {"float32": DataType.Float, "bfloat16": DataType.BFloat16}
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Sizes:
    """Global sizes of the block."""

    tokens: int
    hidden: int
    ffn: int


def feed_forward(n: Sizes, dtype: DataType, ranks: int) -> FusionDefinition:
    """The global program, and where its inputs lie. Every other placement, and both collectives, follow."""
    mesh = Mesh(range(ranks))
    with FusionDefinition() as fd:
        x = fd.define_tensor([n.tokens, n.hidden], True, dtype)
        norm = fd.define_tensor([n.hidden], True, dtype)
        up = fd.define_tensor([n.ffn, n.hidden], True, dtype)
        bias = fd.define_tensor([n.ffn], True, dtype)
        down = fd.define_tensor([n.hidden, n.ffn], True, dtype)

        h = rmsnorm(fd, x, norm, n.hidden)
        y = gelu(fd, fd.ops.linear(h, up, bias))
        out = fd.ops.cast(fd.ops.add(x, fd.ops.linear(y, down)), dtype)
        fd.add_output(out)

        norm.set_device_mesh(mesh)
        for tensor, dim in ((x, 0), (up, 0), (bias, 0), (down, 1)):
            tensor.set_device_mesh(mesh)
            tensor.outer_split(dim, ranks)
            tensor.axis(dim).parallelize(ParallelType.mesh_x)
    return fd


def rmsnorm(fd: FusionDefinition, x: TensorView, weight: TensorView, hidden: int) -> TensorView:
    wide = fd.ops.cast(x, DataType.Float)
    mean_square = fd.ops.div(fd.ops.sum(fd.ops.mul(wide, wide), [1], keepdim=True), float(hidden))
    scaled = fd.ops.mul(wide, fd.ops.rsqrt(fd.ops.add(mean_square, EPS)))
    return fd.ops.cast(fd.ops.mul(scaled, weight), x.dtype())


def gelu(fd: FusionDefinition, x: TensorView) -> TensorView:
    """The tanh form."""
    wide = fd.ops.cast(x, DataType.Float)
    cube = fd.ops.mul(fd.ops.mul(wide, wide), wide)
    inner = fd.ops.mul(fd.ops.add(wide, fd.ops.mul(cube, 0.044715)), math.sqrt(2 / math.pi))
    return fd.ops.cast(fd.ops.mul(fd.ops.mul(wide, 0.5), fd.ops.add(fd.ops.tanh(inner), 1.0)), x.dtype())


def random_inputs(n: Sizes, dtype: torch.dtype) -> list[torch.Tensor]:
    """Global inputs, the same on every rank; scaled so that every activation is about 1."""
    torch.manual_seed(0)
    x, norm, bias = torch.randn(n.tokens, n.hidden), 1 + 0.1 * torch.randn(n.hidden), 0.1 * torch.randn(n.ffn)
    up, down = torch.randn(n.ffn, n.hidden) / math.sqrt(n.hidden), torch.randn(n.hidden, n.ffn) / math.sqrt(n.ffn)
    return [t.to(dtype) for t in (x, norm, up, bias, down)]


def reference(x: torch.Tensor, norm: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The whole of it on one rank."""
    h = F.rms_norm(x, [x.shape[1]], norm, EPS)
    return x + F.linear(F.gelu(F.linear(h, up, bias), approximate="tanh"), down)


def by_hand(inputs: list[torch.Tensor], world: World) -> Step:
    """What a person would write with torch.distributed for one rank. Uneven tokens are padded beforehand."""
    x, norm, up, bias, down = inputs
    size, rank, dist = world.size, world.rank, world.dist
    rows = -(-x.shape[0] // size)
    mine = F.pad(x, (0, 0, 0, rows * size - x.shape[0]))[rows * rank : rows * (rank + 1)].contiguous()
    columns = -(-up.shape[0] // size)
    cut = slice(columns * rank, columns * (rank + 1))
    up, bias, down = up[cut].contiguous(), bias[cut].contiguous(), down[:, cut].contiguous()
    whole_shape = (rows * size, x.shape[1])
    if dist is not None:  # torch 2.13 renamed them
        all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
        reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor

    @torch.no_grad()
    def step() -> list[torch.Tensor]:
        h = F.rms_norm(mine, [mine.shape[1]], norm, EPS)
        if dist is None:
            return [mine + F.linear(F.gelu(F.linear(h, up, bias), approximate="tanh"), down)]
        whole = h.new_empty(whole_shape)
        all_gather(whole, h)
        partial = F.linear(F.gelu(F.linear(whole, up, bias), approximate="tanh"), down)
        out = torch.empty_like(mine)
        reduce_scatter(out, partial)
        return [out.add_(mine)]

    return step


def demo(n: Sizes, dtype_name: str, ranks: int) -> Job:
    dtype = DTYPES[dtype_name]
    inputs = random_inputs(n, dtype.torch)
    sizes = f"tokens {n.tokens}, hidden {n.hidden}, ffn {n.ffn}"
    title = f"feed-forward with sequence parallelism: {sizes}, {dtype_name}, {ranks} rank{'s' * (ranks > 1)}"
    return Job(title, feed_forward(n, dtype, ranks), inputs, lambda: [reference(*inputs)], by_hand=lambda world: by_hand(inputs, world))
