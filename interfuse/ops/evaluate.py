"""What every node means, in PyTorch: the oracle for passes, and the way to run without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

import torch

from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import (
    AllGather,
    AllReduce,
    AllToAll,
    Aten,
    Broadcast,
    Cat,
    Const,
    Contract,
    Full,
    Iota,
    Move,
    Node,
    Pad,
    Permute,
    Pointwise,
    Program,
    Random,
    Reduce,
    ReduceScatter,
    Reshape,
    Scalar,
    ScalarCompute,
    ScalarInput,
    SizeScalar,
    Slice,
    Tensor,
    node_scalars,
)
from interfuse.ir.sizes import Size
from interfuse.ops.random import RNG_OFFSET, RNG_SEED, generate

Number = bool | int | float | complex


def scalar_value(scalar: Scalar, sizes_known: Mapping[str, int], scalars: Mapping[str, Number]) -> Number:
    """The Python number that a scalar is in one call."""
    match scalar:
        case Const():
            return scalar.value
        case SizeScalar():
            return sizes.evaluate(scalar.value, sizes_known)
        case ScalarInput():
            return scalars[scalar.name]
        case ScalarCompute():
            args = [torch.tensor(scalar_value(a, sizes_known, scalars), dtype=a.dtype.torch) for a in scalar.args]
            return scalar.op.torch(*args).to(scalar.dtype.torch).item()
        case _:
            assert_never(scalar)


def evaluate_node(
    node: Node, value: Callable[[Tensor], torch.Tensor], size: Callable[[Size], int], number: Callable[[Scalar], Number]
) -> torch.Tensor:
    """The node's result as a torch tensor, local or global as its operands are."""
    shape = [size(s) for s in node.out.shape]
    dtype = node.out.dtype.torch
    match node:
        case Pointwise():
            return _pointwise(node, value, number)
        case Reduce():
            arg = value(node.arg)
            accumulate = node.out.dtype.compute.torch
            return node.op.torch(arg.to(accumulate), node.dims).to(dtype)
        case Contract():
            return contract(node, value(node.a), value(node.b))
        case Broadcast():
            arg = value(node.arg)
            unit = [1] * len(shape)
            for i, d in enumerate(node.dims):
                unit[d] = arg.shape[i]
            return arg.reshape(unit).expand(shape)
        case Reshape():
            return value(node.arg).reshape(shape)
        case Permute():
            return value(node.arg).permute(node.dims)
        case Slice():
            arg = value(node.arg)
            for d, (first, length) in enumerate(zip(node.starts, shape, strict=True)):
                arg = arg.narrow(d, size(first), length)
            return arg
        case Pad():
            arg = value(node.arg)
            out = torch.full(shape, number(node.value), dtype=dtype, device=arg.device)
            inner = out
            for d, before in enumerate(node.before):
                inner = inner.narrow(d, size(before), arg.shape[d])
            inner.copy_(arg)
            return out
        case Cat():
            return torch.cat([value(a) for a in node.args], node.dim)
        case Full():
            return torch.full(shape, number(node.value), dtype=dtype)
        case Iota():
            start, step = number(node.start), number(node.step)
            return (torch.arange(shape[0], dtype=torch.float64 if node.out.dtype.is_float else torch.int64) * step + start).to(dtype)
        case Random():
            a, b, seed, offset = (real(number(s)) for s in (node.a, node.b, node.seed, node.offset))
            whole, starts = [size(s) for s in node.whole], [size(s) for s in node.starts]
            return generate(node.kind, dtype, shape, a, b, int(seed), int(offset), node.stream, whole, starts)
        case Aten():
            results = aten(node, [value(a) if isinstance(a, Tensor) else number(a) for a in node.args], size)
            return results[node.result]
        case Move():
            return value(node.arg)
        case AllGather() | ReduceScatter() | AllReduce() | AllToAll():
            raise LookupError(f"{type(node).__name__} needs the other ranks")
        case _:
            assert_never(node)


def real(value: Number) -> bool | int | float:
    """A number of a program where only real ones mean something."""
    assert not isinstance(value, complex)
    return value


def aten(node: Aten, args: list[torch.Tensor | Number], size: Callable[[Size], int]) -> tuple[torch.Tensor, ...]:
    """All results of an op that ATen computes, in the types that the program says."""
    attrs = {k: size(v) if isinstance(v, sizes.Expr) else v.torch if isinstance(v, DataType) else v for k, v in node.attrs}
    results = node.op.torch(*args, **attrs)
    return results if isinstance(results, tuple) else (results,)


def _pointwise(node: Pointwise, value: Callable[[Tensor], torch.Tensor], number: Callable[[Scalar], Number]) -> torch.Tensor:
    """Half operands are computed in float and rounded once, like a kernel does."""
    args = []
    for arg in node.args:
        if isinstance(arg, Tensor):
            args.append(value(arg).to(arg.dtype.compute.torch))
        else:
            args.append(torch.tensor(number(arg), dtype=arg.dtype.compute.torch))
    result = node.op.torch(*args)
    kind = node.out.dtype
    if result.is_complex() and (kind.is_float or kind.is_int):
        result = result.real
    shape = torch.broadcast_shapes(*(a.shape for a in args))
    return result.expand(shape).to(kind.torch)


def contract(node: Contract, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product through `torch.matmul`, in operand order, so that it equals `torch.matmul` and `torch.nn.functional.linear`."""
    if node.b_letters[-1] == node.a_letters[-1]:
        b = b.transpose(-1, -2) if b.ndim > 1 else b
    if node.b_letters[:-2] and not set(node.b_letters[:-2]) & set(node.a_letters):
        b = b.reshape(*b.shape[:-2], *([1] * max(0, a.ndim - 2)), *b.shape[-2:])
    return torch.matmul(a, b)


def evaluate(
    program: Program, tensors: Mapping[Tensor, torch.Tensor], sizes_known: Mapping[str, int], scalars: Mapping[str, Number]
) -> list[torch.Tensor]:
    """Outputs of a Traced program (global shapes), computed node by node."""
    values = dict(tensors)
    if any(RNG_SEED in node_scalars(node) for node in program.nodes):
        drawn = torch.randint(-(1 << 63), (1 << 63) - 1, (2,)).tolist()
        scalars = {RNG_SEED.name: drawn[0], RNG_OFFSET.name: drawn[1], **scalars}
    for node in program.nodes:
        values[node.out] = evaluate_node(
            node,
            values.__getitem__,
            lambda s: sizes.evaluate(s, sizes_known),
            lambda s: scalar_value(s, sizes_known, scalars),
        )
    return [values[t] for t in program.outputs]
