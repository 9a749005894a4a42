"""When two programs are the same: a value that does not depend on names, on dead nodes, or on the order of independent ones."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Hashable
from typing import Any

from interfuse.ir import sizes
from interfuse.ir.nodes import AtenOp, Node, Program, ReduceOp, ScalarOp, Tensor, operands
from interfuse.ir.sizes import Expr

Structure = tuple[Hashable, ...]


def structure(program: Program, describe: Callable[[Tensor], Hashable] = lambda t: None) -> Structure:
    """Equal for two programs exactly if they have the same inputs (types, fixed sizes, order), the same graph with the same attributes and
    constants, the same outputs and aliases, and ask the same of their sizes. `describe` adds what else counts of a tensor."""
    return _Structure(program, describe).value()


class _Structure:
    def __init__(self, program: Program, describe: Callable[[Tensor], Hashable]) -> None:
        self.program, self.describe = program, describe
        self.number: dict[Tensor, int] = {}
        self.symbol: dict[str, sizes.Size] = {}
        self.name: dict[str, str] = {}

    def value(self) -> Structure:
        program = self.program
        for position, name, _ in program.scalars:
            self._symbol(name, f"~c{position}")
        for i, (name, _) in enumerate(program.computed):
            self._symbol(name, f"~h{i}")
        inputs = [self._input(t) for t in program.inputs]
        scalars = tuple((position, dtype) for position, _, dtype in program.scalars)
        computed = tuple(self._encoded(scalar) for _, scalar in program.computed)
        nodes = tuple(self._node(node) for node in self._reached())
        outputs = tuple(self.number[t] for t in program.outputs)
        aliases = tuple((self.number[source], self.number[target]) for source, target in program.aliases)
        equal = frozenset((self._encoded(r.a), self._encoded(r.b)) for r in program.equal)
        return (tuple(inputs), scalars, computed, nodes, outputs, aliases, equal)

    def _symbol(self, name: str, canonical: str) -> None:
        self.symbol[name], self.name[name] = sizes.symbol(canonical), canonical

    def _input(self, tensor: Tensor) -> Hashable:
        for size in tensor.shape:
            for name in sizes.symbols(size) - self.symbol.keys():
                self._symbol(name, f"~s{len(self.symbol)}")
        return self._new(tensor)

    def _new(self, tensor: Tensor) -> Hashable:
        self.number[tensor] = len(self.number)
        return (tensor.dtype, tuple(self._encoded(s) for s in tensor.shape), self.describe(tensor))

    def _reached(self) -> list[Node]:
        """Nodes that results need, in post-order from the first result on."""
        producer = self.program.producers()
        seen: set[Tensor] = set(self.program.inputs)
        order: list[Node] = []
        stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(self.program.results())]
        while stack:
            tensor, ready = stack.pop()
            if ready:
                order.append(producer[tensor])
            elif tensor not in seen:
                seen.add(tensor)
                stack.append((tensor, True))
                stack += [(t, False) for t in reversed(operands(producer[tensor]))]
        return order

    def _node(self, node: Node) -> Hashable:
        fields = [f.name for f in dataclasses.fields(node) if f.name != "out"]
        encoded = (type(node).__name__, *(self._encoded(getattr(node, f)) for f in fields))
        return (*encoded, self._new(node.out))

    def _encoded(self, value: Any) -> Hashable:
        if isinstance(value, Tensor):
            return ("tensor", self.number[value])
        if isinstance(value, ScalarOp | ReduceOp | AtenOp):
            return value.name
        if isinstance(value, Expr):
            return sizes.substitute(value, self.symbol)
        if isinstance(value, tuple | list):
            return tuple(self._encoded(v) for v in value)
        if isinstance(value, enum.Enum):
            return value
        if dataclasses.is_dataclass(value):
            return (type(value).__name__, *(self._encoded(getattr(value, f.name)) for f in dataclasses.fields(value)))
        if isinstance(value, str):
            return self.name.get(value, value)
        return (type(value).__name__, repr(value))  # 1, 1.0 and True are equal, and so are 0.0 and -0.0; nan equals nothing
