"""Which scalar inputs steer shapes: a plan is made for each of their values, while the others are given with every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from interfuse.ir import sizes
from interfuse.ir.nodes import Aten, Node, Pointwise, Program, Scalar, ScalarCompute, ScalarInput, SizeScalar, Tensor, node_scalars
from interfuse.ir.sizes import Expr


def steering(program: Program) -> frozenset[str]:
    """Names of the scalar inputs on which sizes depend."""
    given = {name for _, name, _ in program.scalars}
    found: set[str] = set()
    for size in _sizes(program):
        found |= sizes.symbols(size)
    for scalar in (*(s for _, s in program.computed), *(s for n in program.nodes for s in node_scalars(n))):
        found |= {name for part in _parts(scalar) if isinstance(part, SizeScalar) and not _is_bare(part) for name in sizes.symbols(part.value)}
    for _, scalar in program.computed:
        for part in _parts(scalar):
            found |= {part.name} if isinstance(part, ScalarInput) else sizes.symbols(part.value) if isinstance(part, SizeScalar) else set()
    return frozenset(found & given)


def release(program: Program) -> Program:
    """The program in which an integer input that steers nothing is given with every call, like other numbers."""
    free = {name for _, name, dtype in program.scalars if dtype.is_int} - steering(program)
    if not free:
        return program

    def scalar(value: Scalar) -> Scalar:
        match value:
            case SizeScalar(value=Expr()) if _is_bare(value) and sizes.symbols(value.value) <= free:
                return ScalarInput(sizes.to_text(value.value), value.dtype)
            case ScalarCompute():
                return replace(value, args=tuple(scalar(a) for a in value.args))
            case _:
                return value

    return replace(program, nodes=tuple(_with_scalars(n, scalar) for n in program.nodes))


_SCALAR_FIELDS = ("value", "start", "step", "a", "b", "seed", "offset")  # of Full, Pad, Iota and Random


def _with_scalars(node: Node, scalar: Callable[[Scalar], Scalar]) -> Node:
    if isinstance(node, Pointwise | Aten):
        return replace(node, args=tuple(a if isinstance(a, Tensor) else scalar(a) for a in node.args)) if node_scalars(node) else node
    if not node_scalars(node):
        return node
    changed: dict[str, Any] = {f.name: scalar(getattr(node, f.name)) for f in fields(node) if f.name in _SCALAR_FIELDS}
    return replace(node, **changed)


def _is_bare(scalar: SizeScalar) -> bool:
    """Whether it is one symbol and nothing else."""
    value = scalar.value
    return isinstance(value, Expr) and len(value.terms) == 1 and value.terms[0][1] == 1 and [type(a) for a in value.terms[0][0]] == [sizes.Sym]


def _parts(scalar: Scalar) -> Iterator[Scalar]:
    yield scalar
    if isinstance(scalar, ScalarCompute):
        for arg in scalar.args:
            yield from _parts(arg)


def _sizes(program: Program) -> Iterator[sizes.Size]:
    """Every size of a program that is not a scalar operand."""
    for tensor in program.tensors():
        yield from tensor.shape
    for r in program.equal:
        yield from (r.a, r.b)
    for node in program.nodes:
        for f in fields(node):
            value = getattr(node, f.name)
            if isinstance(node, Aten) and f.name == "attrs":
                yield from (v for _, v in value if isinstance(v, Expr))
            elif isinstance(value, tuple):
                yield from (v for v in value if isinstance(v, Expr))
