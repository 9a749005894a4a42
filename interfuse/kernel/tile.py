"""Kernel segment → tile program: whether one template holds the nodes, which one, and its loops."""

from __future__ import annotations

from collections.abc import Sequence

from interfuse.ir.nodes import Node, Tensor, operands
from interfuse.kernel.builder import Builder
from interfuse.kernel.nodes import Buffer, TileKernel
from interfuse.kernel.pointwise import crossing, pointwise, transpose
from interfuse.kernel.reduction import reduction
from interfuse.kernel.space import Refused, Space, analyse
from interfuse.plan.segments import KernelSegment


def refuse(nodes: Sequence[Node], outputs: Sequence[Tensor]) -> str | None:
    """None where one template can hold these nodes; else one sentence with the facts that stand against it."""
    try:
        analyse(nodes, outputs)
    except Refused as reason:
        return str(reason)
    return None


def template_of(nodes: Sequence[Node], outputs: Sequence[Tensor]) -> str:
    """pointwise, transpose, reduction (results only over kept dims) or normalization (a row is used again after its reduction)."""
    space = analyse(nodes, outputs)
    return _template(space, Builder(space, inputs_of(nodes, outputs), outputs))


def _template(space: Space, build: Builder) -> str:
    if space.reduces:
        return "normalization" if space.levels > 1 or space.has_full_output else "reduction"
    return "transpose" if crossing(build) else "pointwise"


def inputs_of(nodes: Sequence[Node], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that nodes read and do not make."""
    made = {node.out for node in nodes}
    read = [t for node in nodes for t in operands(node)] + list(outputs)
    return list(dict.fromkeys(t for t in read if t not in made))


def tile(segment: KernelSegment) -> TileKernel:
    """The tile program of a segment; raises `Refused` where `refuse` has a reason."""
    space = analyse(segment.nodes, segment.outputs)
    build = Builder(space, segment.inputs, segment.outputs)
    template = _template(space, build)
    crossed = None if space.reduces else crossing(build)
    if space.reduces:
        reduction(build)
    elif crossed:
        transpose(build, *crossed)
    else:
        pointwise(build)
    buffers = [Buffer(name, t.dtype, False) for t, name in build.inputs.items()]
    buffers += [Buffer(name, t.dtype, True) for t, name in build.outputs.items()]
    return TileKernel(template, tuple(buffers), tuple(build.scalars), space.size.arguments(), tuple(build.scopes[0].body))
