"""Programs as text: one line per node. The text of a program is also what its hash is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from interfuse.ir import sizes
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
)


def scalar_text(scalar: Scalar) -> str:
    match scalar:
        case Const():
            return repr(scalar.value)
        case SizeScalar():
            return sizes.to_text(scalar.value)
        case ScalarInput():
            return scalar.name
        case ScalarCompute():
            return f"{scalar.op.name}({', '.join(scalar_text(a) for a in scalar.args)}):{scalar.dtype.short}"
        case _:
            assert_never(scalar)


def node_text(node: Node) -> str:
    """The right-hand side of a node's line."""
    match node:
        case Pointwise():
            args = " ".join(a.name if isinstance(a, Tensor) else scalar_text(a) for a in node.args)
            return f"{node.op.name} {args}"
        case Reduce():
            return f"{node.op.name} {node.arg.name} over {_list(node.dims)}"
        case Contract():
            return f'contract "{node.a_letters},{node.b_letters}->{node.out_letters}" {node.a.name} {node.b.name}'
        case Broadcast():
            return f"broadcast {node.arg.name} to dims {_list(node.dims)}"
        case Reshape():
            return f"reshape {node.arg.name}"
        case Permute():
            return f"permute {node.arg.name} {_list(node.dims)}"
        case Slice():
            return f"slice {node.arg.name} from {_list(node.starts)}"
        case Pad():
            return f"pad {node.arg.name} before {_list(node.before)} with {scalar_text(node.value)}"
        case Cat():
            return f"cat {' '.join(a.name for a in node.args)} along {node.dim}"
        case Full():
            return f"full {scalar_text(node.value)}"
        case Iota():
            return f"iota from {scalar_text(node.start)} by {scalar_text(node.step)}"
        case Random():
            scalars = ", ".join(scalar_text(s) for s in (node.a, node.b, node.seed, node.offset))
            return f"{node.kind} {scalars} stream {node.stream} of {_list(node.whole)} from {_list(node.starts)}"
        case Aten():
            given = [a.name if isinstance(a, Tensor) else scalar_text(a) for a in node.args] + [f"{k}={v}" for k, v in node.attrs]
            return f"{node.op.name} {' '.join(given)}" + (f" [{node.result}]" if node.op.results > 1 else "")
        case Move():
            return f"move {node.arg.name}"
        case AllGather() | AllToAll():
            return f"{_KIND[type(node)]} {node.arg.name} axis={node.axis}"
        case ReduceScatter() | AllReduce():
            return f"{_KIND[type(node)]} {node.arg.name} {node.op.name} axis={node.axis}"
        case _:
            assert_never(node)


_KIND = {AllGather: "all_gather", AllToAll: "all_to_all", ReduceScatter: "reduce_scatter", AllReduce: "all_reduce"}


def _list(values: tuple[sizes.Size, ...]) -> str:
    return "(" + ", ".join(sizes.to_text(v) for v in values) + ")"


def shape_text(tensor: Tensor) -> str:
    return f"{tensor.dtype.short}[{', '.join(sizes.to_text(s) for s in tensor.shape)}]"


def program_text(program: Program, describe: Callable[[Tensor], str] = shape_text, note: Callable[[Tensor], str] = lambda t: "") -> str:
    """Inputs, nodes and outputs, a line each; `describe` spells a tensor's type, `note` says why it is as it is."""
    rows: list[tuple[str, str, str]] = [(t.name, describe(t), note(t)) for t in program.inputs]
    rows += [(name, f"{dtype.short} scalar", "") for _, name, dtype in program.scalars]
    rows += [(f"{n.out.name} = {node_text(n)}", describe(n.out), note(n.out)) for n in program.nodes]
    wide = max((len(r[0]) for r in rows), default=0)
    typed = max((len(r[1]) for r in rows), default=0)
    lines = [f"  {left:<{wide}} : {kind:<{typed}}   {why}".rstrip() for left, kind, why in rows]
    lines += [f"  size {name} = {scalar_text(scalar)}" for name, scalar in program.computed]
    lines += [f"  write {source.name} into {target.name}" for source, target in program.aliases]
    return "\n".join([*lines, f"  return {', '.join(t.name for t in program.outputs)}"]) + "\n"
