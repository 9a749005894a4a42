"""Reductions over dims that only repeat a tensor: a sum of n equal elements is one of them times n, and nothing is rounded n times.

t = broadcast a to [n, m]; s = sum t over (0,)   →   s = mul a n
"""

from __future__ import annotations

from dataclasses import replace

from interfuse.ir import sizes
from interfuse.ir.nodes import Broadcast, Node, Pointwise, Program, Reduce, SizeScalar, Tensor
from interfuse.ops.build import scalar_cast
from interfuse.ops.elementwise import ROWS
from interfuse.ops.promote import kind
from interfuse.shard.letters import repeats

_TIMES = {"sum": "mul", "prod": "pow", "max": None, "min": None}


def without_repeats(program: Program, fixed: set[Tensor]) -> Program:
    """The program with such reductions written anew, or the same object; those whose operand or result is in `fixed` stay."""
    producers = program.producers()
    nodes: list[Node] = []
    for node in program.nodes:
        source = producers.get(node.arg) if isinstance(node, Reduce) else None
        if isinstance(node, Reduce) and isinstance(source, Broadcast) and not {node.arg, node.out} & fixed and kind(node.out.dtype):
            nodes += _rewritten(node, source)
        else:
            nodes.append(node)
    return program if tuple(nodes) == program.nodes else replace(program, nodes=tuple(nodes))


def _rewritten(node: Reduce, source: Broadcast) -> list[Node]:
    shape, arg = source.out.shape, source.arg
    real = {d for i, d in enumerate(source.dims) if not repeats(arg.shape[i], shape[d])}
    unclear = any(d not in real and arg.shape[i] != 1 for i, d in enumerate(source.dims))
    if unclear or real.issuperset(node.dims):
        return [node]
    steps: list[Node] = []
    gone = tuple(i for i, d in enumerate(source.dims) if d in node.dims)
    kept = tuple(i for i in range(arg.ndim) if i not in gone)
    here = arg
    if gone:
        here = Tensor(f"{node.out.name}_once", tuple(arg.shape[i] for i in kept), node.out.dtype)
        steps.append(Reduce(here, node.op, arg, gone))
    if (name := _TIMES[node.op.name]) is not None:
        count = scalar_cast(SizeScalar(sizes.product(shape[d] for d in node.dims if d not in real)), node.out.dtype)
        more = Tensor(f"{node.out.name}_times", here.shape, node.out.dtype)
        steps.append(Pointwise(more, ROWS[name], (here, count)))
        here = more
    if steps and here.shape == node.out.shape:
        return [*steps[:-1], replace(steps[-1], out=node.out)]
    left = [d for d in range(len(shape)) if d not in node.dims]
    return [*steps, Broadcast(node.out, here, tuple(left.index(source.dims[i]) for i in kept))]
