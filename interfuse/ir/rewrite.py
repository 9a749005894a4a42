"""Writing nodes and programs anew: other operands, other results, known sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from interfuse.ir import sizes
from interfuse.ir.nodes import (
    Aten,
    Cat,
    Contract,
    Full,
    Iota,
    Node,
    Pad,
    Pointwise,
    Program,
    Random,
    Scalar,
    ScalarCompute,
    SizeScalar,
    Slice,
    Tensor,
    operands,
)
from interfuse.ir.sizes import Size


def with_operands(node: Node, new: tuple[Tensor, ...], out: Tensor) -> Node:
    """The same node reading `new` and giving `out`."""
    match node:
        case Pointwise() | Aten():
            fresh = iter(new)
            return replace(node, out=out, args=tuple(next(fresh) if isinstance(a, Tensor) else a for a in node.args))
        case Contract():
            return replace(node, out=out, a=new[0], b=new[1])
        case Cat():
            return replace(node, out=out, args=new)
        case Full() | Iota() | Random():
            return replace(node, out=out)
        case _:
            return replace(node, out=out, arg=new[0])


def map_sizes(node: Node, size: Callable[[Size], Size]) -> Node:
    """The same node with every size attribute rewritten (its tensors stay)."""

    def scalar(value: Scalar) -> Scalar:
        match value:
            case SizeScalar():
                return SizeScalar(size(value.value))
            case ScalarCompute():
                return replace(value, args=tuple(scalar(a) for a in value.args))
            case _:
                return value

    match node:
        case Pointwise():
            return replace(node, args=tuple(a if isinstance(a, Tensor) else scalar(a) for a in node.args))
        case Aten():
            attrs = tuple((k, size(v) if isinstance(v, sizes.Expr) else v) for k, v in node.attrs)
            return replace(node, args=tuple(a if isinstance(a, Tensor) else scalar(a) for a in node.args), attrs=attrs)
        case Slice():
            return replace(node, starts=tuple(size(s) for s in node.starts))
        case Pad():
            return replace(node, before=tuple(size(s) for s in node.before), value=scalar(node.value))
        case Full():
            return replace(node, value=scalar(node.value))
        case Iota():
            return replace(node, start=scalar(node.start), step=scalar(node.step))
        case Random():
            whole, starts = tuple(size(s) for s in node.whole), tuple(size(s) for s in node.starts)
            a, b, seed, offset = (scalar(s) for s in (node.a, node.b, node.seed, node.offset))
            return replace(node, a=a, b=b, seed=seed, offset=offset, whole=whole, starts=starts)
        case _:
            return node


def rewrite_sizes(program: Program, size: Callable[[Size], Size]) -> tuple[Program, Mapping[Tensor, Tensor]]:
    """The program with every size rewritten, and the new tensor of every old one."""
    new: dict[Tensor, Tensor] = {}

    def tensor(t: Tensor) -> Tensor:
        if t not in new:
            new[t] = Tensor(t.name, tuple(size(s) for s in t.shape), t.dtype)
        return new[t]

    inputs = tuple(tensor(t) for t in program.inputs)
    nodes = []
    for node in program.nodes:
        nodes.append(with_operands(map_sizes(node, size), tuple(tensor(t) for t in operands(node)), tensor(node.out)))
    outputs = tuple(tensor(t) for t in program.outputs)
    aliases = tuple((tensor(s), tensor(t)) for s, t in program.aliases)
    return replace(program, inputs=inputs, nodes=tuple(nodes), outputs=outputs, aliases=aliases), new


def bind(program: Program, known: Mapping[str, int]) -> tuple[Program, Mapping[Tensor, Tensor]]:
    """The program with symbols replaced by numbers."""
    return rewrite_sizes(program, lambda s: sizes.substitute(s, known))
