"""simplify: Traced → Traced. Drops what no output needs, copies that nobody can tell from their operand, and sums of repeats; computes equal
things once. A tensor that the user placed, or that is returned, is never touched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from interfuse.ir.nodes import Node, Pointwise, Program, Tensor, operands
from interfuse.ir.printing import node_text
from interfuse.ir.rewrite import with_operands
from interfuse.ops.elementwise import SET
from interfuse.shard.placed import Traced
from interfuse.shard.repeats import without_repeats


def simplify(traced: Traced) -> Traced:
    """The same object if nothing changes."""
    program = traced.program
    given = traced.annotations.given if traced.annotations else {}
    reduced = traced.annotations.reduces if traced.annotations else {}
    fixed = set(given) | set(reduced) | set(program.results())
    program = without_repeats(program, set(given) | set(reduced))
    needed = _needed(program)
    instead: dict[Tensor, Tensor] = {}
    seen: dict[Any, Tensor] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        if node.out not in needed:
            continue
        read = tuple(instead.get(t, t) for t in operands(node))
        if read != operands(node):
            node = with_operands(node, read, node.out)
        if isinstance(node, Pointwise) and node.op is SET and node.out not in fixed:
            instead[node.out] = read[0]
            continue
        key = (type(node), node_text(node), node.out.shape, node.out.dtype)
        twin = seen.get(key)
        if twin is not None and node.out not in fixed:
            instead[node.out] = twin
            continue
        if node.out not in fixed:
            seen.setdefault(key, node.out)
        nodes.append(node)
    if tuple(nodes) == traced.program.nodes:
        return traced
    return Traced(replace(program, nodes=tuple(nodes)), traced.annotations)


def _needed(program: Program) -> set[Tensor]:
    needed = set(program.results())
    for node in reversed(program.nodes):
        if node.out in needed:
            needed.update(operands(node))
    return needed
