"""Which nodes kernels can hold at all; the rest runs through ATen, node by node."""

from __future__ import annotations

from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Node, Pointwise, Random, Reduce, operands

_TYPES = {DataType.Double, DataType.Float, DataType.Half, DataType.BFloat16, DataType.Int, DataType.Int32, DataType.Bool}


def unsupported(node: Node) -> str | None:
    """Why no kernel can hold this node, or None."""
    for tensor in (*operands(node), node.out):
        if tensor.dtype not in _TYPES:
            return f"kernels do not compute {tensor.dtype.short}"
    if isinstance(node, Random):
        return "random numbers have no kernel yet"
    if isinstance(node, Pointwise | Reduce) and not node.op.cpp:
        return f"{node.op.name} has no kernel expression"
    return None
