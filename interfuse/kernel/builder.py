"""Writing a kernel's body: scopes that nest as loops do, values placed in the outermost scope where they exist, each computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType, from_torch
from interfuse.ir.nodes import Broadcast, Cat, Const, Full, Iota, Node, Pad, Permute, Pointwise, Reduce, Reshape, Scalar, Slice, Tensor
from interfuse.ir.sizes import Size
from interfuse.kernel.affine import coefficient, flatten, unflatten
from interfuse.kernel.nodes import (
    Argument,
    Array,
    Compute,
    Convert,
    Element,
    IndexValue,
    Let,
    LetIndex,
    Load,
    Loop,
    Mask,
    Merge,
    Number,
    Ref,
    Select,
    Store,
    Value,
    Within,
    Write,
    parts,
)
from interfuse.kernel.space import Index, Point, Space, loops_of, padded, pieces, reads
from interfuse.ops.elementwise import ROWS as ELEMENTWISE

EXACT = frozenset({"neg", "abs", "relu", "maximum", "minimum", "where", "set", "cast"})  # of half operands give a half result


@dataclass
class Scope:
    """The body of one loop while it is written, and the values already named in it."""

    body: list[Any] = field(default_factory=list)
    known: dict[Value, Ref] = field(default_factory=dict)


@dataclass
class Access:
    """One load or store: a flat address over the loops."""

    index: Size
    is_load: bool


class Builder:
    """State of writing one kernel. `extent`, `kept` and `reduced` are the loops after neighbours have been collapsed."""

    def __init__(self, space: Space, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.space = space
        self.inputs = {t: f"in{k}" for k, t in enumerate(inputs)}
        self.outputs = {t: f"out{k}" for k, t in enumerate(outputs)}
        self.scalars: dict[Scalar, Argument] = {}
        self.scopes = [Scope()]
        self.depth: dict[str, int] = {}
        self.results: dict[Tensor, Value] = {}
        self.staged: dict[Load, Element] = {}
        self.rows: dict[Point, str] = {}  # values kept for a later pass, and the arrays that hold them
        self.written: set[Point] = set()  # those of them that an earlier pass has written
        self.count = 0
        self.extent = dict(space.extents)
        self.rename: dict[str, Size] = {}
        self.loads = self._loads()
        self.kept = self._collapse(space.kept)
        self.reduced = self._collapse(space.reduced)

    # ---- loops ------------------------------------------------------------------------------------------------------------------------------

    def _loads(self) -> list[Load]:
        """Every load of the kernel before loops are collapsed, in order of inputs."""
        wanted = self.wanted([(stored, index, ()) for _, stored, index in self.space.roots], through_reductions=True)
        self._conditions = [w.index for points in wanted.values() for _, mask in points for w in mask]
        self._conditions += [index[0] for node in self.space.nodes if isinstance(node, Iota) for index, _ in wanted.get(node.out, ())]
        found = []
        for tensor, buffer in self.inputs.items():
            for index, mask in wanted.get(tensor, ()):
                found.append(Load(buffer, flatten(index, self.space.shape(tensor)), mask, tensor.dtype))
        return found

    def _collapse(self, loops: Sequence[str]) -> list[str]:
        """Neighbouring loops become one where every address, condition and index steps through both as through one."""
        stores = [flatten(index, self.space.shape(stored)) for _, stored, index in self.space.roots]
        sites = [self.at(s) for s in [*(load.index for load in self.loads), *stores, *self._conditions]]
        result: list[str] = []
        for outer in reversed(loops):
            if result:
                inner = result[0]
                if all(_steps_through(s, outer, inner, self.extent[inner]) for s in sites):
                    self.rename[outer] = 0
                    self.extent[inner] = sizes.mul(self.extent[outer], self.extent[inner])
                    continue
            result.insert(0, outer)
        return result

    def at(self, index: Size) -> Size:
        """An index in terms of the collapsed loops."""
        return sizes.substitute(index, self.rename) if self.rename else index

    def total(self, loops: Sequence[str]) -> Size:
        return sizes.product(self.extent[name] for name in loops)

    def known(self, size: Size) -> Size:
        """The size outside the kernel, where it may be a number."""
        outside = {sizes.to_text(inside): size for size, inside in self.space.size.names.items()}
        return sizes.substitute(size, outside)

    def open(self, *names: str) -> None:
        """Enters a loop that defines these indices."""
        self.scopes.append(Scope())
        for name in names:
            self.depth[name] = len(self.scopes) - 1

    def close(self, kind: Literal["grid", "serial", "lanes"], var: str, lo: Size, hi: Size, step: int = 1, work: Size = 0) -> None:
        body = tuple(self.scopes.pop().body)
        self.emit(Loop(kind, var, lo, hi, body, step, work))

    def emit(self, statement: Any) -> None:
        self.scopes[-1].body.append(statement)

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def index(self, name: str, value: Size) -> Size:
        """Names an index in the present scope, unless it is short already."""
        self.depth[name] = len(self.scopes) - 1
        self.emit(LetIndex(name, value))
        return sizes.symbol(name)

    def open_grid(self, loops: Sequence[str], blocks: Sequence[tuple[str, Size, int]]) -> tuple[str, Size]:
        """Enters one flat loop over `loops` and then over blocks (name of the first index, extent, length); gives its variable and count."""
        counts = [self.extent[name] for name in loops] + [sizes.ceildiv(extent, length) for _, extent, length in blocks]
        self.open("g")
        if not counts:
            return "g", 1
        every = {"g": sizes.product(counts)}
        for name, value in zip(loops, unflatten(sizes.symbol("g"), counts, every)):
            self.index(name, value)
        for (name, _, length), value in zip(blocks, unflatten(sizes.symbol("g"), counts, every)[len(loops) :]):
            self.index(name, sizes.mul(value, length))
        return "g", every["g"]

    # ---- values -----------------------------------------------------------------------------------------------------------------------------

    def _depth_of(self, value: Value) -> int:
        depth = max((self._depth_of(p) for p in parts(value)), default=0)
        found: set[str] = set()
        match value:
            case Load() | Select():
                found = loops_of(w.index for w in value.mask) | loops_of(w.bound for w in value.mask)
                found |= sizes.symbols(value.index) if isinstance(value, Load) else set()
            case IndexValue():
                found = sizes.symbols(value.index)
            case Element():
                found = sizes.symbols(value.index)
                depth = max(depth, self.depth.get(value.array, 0))
            case Ref():
                found = {value.name}
        return max(depth, max((self.depth.get(name, 0) for name in found), default=0))

    def let(self, value: Value) -> Value:
        """A name for the value, in the outermost scope where its parts exist."""
        if isinstance(value, (Number, Argument, Ref)):
            return value
        depth = min(self._depth_of(value), len(self.scopes) - 1)
        scope = self.scopes[depth]
        if value not in scope.known:
            name = self.fresh("v")
            scope.body.append(Let(name, value))
            scope.known[value] = Ref(name, value.dtype.compute)
            self.depth[name] = depth
        return scope.known[value]

    def convert(self, value: Value, dtype: DataType, *, exact: bool = False) -> Value:
        """The value in another type; nothing where it is in it already."""
        if value.dtype.compute is dtype.compute and (exact or not dtype.is_low_precision):
            return value
        if isinstance(value, Number):
            return _constant(value.value, dtype)
        return self.let(Convert(value, dtype))

    def scalar(self, scalar: Scalar) -> Value:
        """A constant in place; anything else is an argument."""
        if isinstance(scalar, Const):
            assert not isinstance(scalar.value, complex)
            return _constant(scalar.value, scalar.dtype)
        if scalar not in self.scalars:
            held = scalar.dtype if not scalar.dtype.is_float else DataType.Double
            self.scalars[scalar] = Argument(f"c{len(self.scalars)}", DataType.Int if held.is_int else held)
        return self.convert(self.scalars[scalar], scalar.dtype)

    def wanted(self, roots: Sequence[Point], *, through_reductions: bool = False) -> dict[Tensor, dict[tuple[Index, Mask], list[Point]]]:
        """Where every tensor is needed for the roots, with what each such element reads."""
        wanted: dict[Tensor, dict[tuple[Index, Mask], list[Point]]] = {}
        for tensor, index, mask in roots:
            wanted.setdefault(tensor, {})[index, mask] = []
        for node in reversed(self.space.nodes):
            for (index, mask), operands in wanted.get(node.out, {}).items():
                if (node.out, index, mask) in self.written:
                    continue
                if isinstance(node, Reduce) and node in self.space.reduces:
                    operands += [(node.arg, self.space.reduces[node][1], ())] if through_reductions else []
                else:
                    operands += reads(node, index, mask, self.space)
                for t, i, m in operands:
                    wanted.setdefault(t, {}).setdefault((i, m), [])
        return wanted

    def values(self, roots: Sequence[tuple[Tensor, Index]]) -> list[Value]:
        """Writes what the roots need into the open scopes; reductions must be finished."""
        wanted = self.wanted([(tensor, index, ()) for tensor, index in roots])
        done: dict[Point, Value] = {}
        for tensor, buffer in self.inputs.items():
            for index, mask in wanted.get(tensor, ()):
                done[tensor, index, mask] = self.load(Load(buffer, flatten(index, self.space.shape(tensor)), mask, tensor.dtype))
        for node in self.space.nodes:
            for (index, mask), operands in wanted.get(node.out, {}).items():
                if node.out in self.results:
                    result = self.convert(self.results[node.out], node.out.dtype)
                elif (node.out, index, mask) in self.written:
                    result = self.let(self.row_element((node.out, index, mask)))
                else:
                    result = self._build(node, index, [done[p] for p in operands])
                    if (node.out, index, mask) in self.rows:
                        element = self.row_element((node.out, index, mask))
                        self.emit(Write(element.array, element.index, result))
                done[node.out, index, mask] = result
        return [done[tensor, index, ()] for tensor, index in roots]

    def row_element(self, point: Point) -> Element:
        """Where a kept row holds the value at the present reduced index."""
        position = flatten([sizes.symbol(name) for name in self.reduced], [self.extent[name] for name in self.reduced])
        return Element(self.rows[point], position, point[0].dtype.compute)

    def load(self, load: Load) -> Value:
        found = Load(load.buffer, self.at(load.index), self._mask(load.mask), load.dtype)
        return self.let(self.staged.get(found, found))

    def _mask(self, mask: Mask) -> Mask:
        return tuple(Within(self.at(w.index), w.bound) for w in mask)

    def _build(self, node: Node, index: Index, operands: list[Value]) -> Value:
        match node:
            case Pointwise():
                return self._pointwise(node, operands)
            case Reduce():
                return self.convert(operands[0], node.out.dtype)
            case Broadcast() | Reshape() | Permute() | Slice():
                return operands[0]
            case Pad():
                mask = self._mask(padded(node, index, self.space)[1])
                other = self.convert(self.scalar(node.value), node.out.dtype)
                return self.let(Select(mask, operands[0], other, node.out.dtype.compute)) if mask else operands[0]
            case Cat():
                result = operands[-1]
                for (_, _, mask), value in reversed(list(zip(pieces(node, index, self.space), operands, strict=True))[:-1]):
                    result = self.let(Select(self._mask(mask), value, result, node.out.dtype.compute))
                return result
            case Full():
                return self.convert(self.scalar(node.value), node.out.dtype)
            case Iota():
                return self._iota(node, index)
            case _:
                raise TypeError(node)

    def _pointwise(self, node: Pointwise, operands: list[Value]) -> Value:
        tensors = iter(operands)
        args = [next(tensors) if isinstance(a, Tensor) else self.scalar(a) for a in node.args]
        common = operand_type(node)
        first = 1 if node.op.name == "where" else 0
        args = args[:first] + [self.convert(a, common) for a in args[first:]]
        halves = {a.dtype for a in node.args[first:] if isinstance(a, Tensor)} if all(isinstance(a, Tensor) for a in node.args[first:]) else set()
        exact = node.op.name in EXACT and halves == {node.out.dtype}
        if node.op.name in ("cast", "set"):
            return self.convert(args[0], node.out.dtype, exact=exact)
        held = node.out.dtype.compute
        result = self._power(args, held) if node.op.name == "pow" else self.let(Compute(node.op, tuple(args), held))
        return self.convert(result, node.out.dtype, exact=exact)

    def _power(self, args: Sequence[Value], held: DataType) -> Value:
        """x to the power of a small constant as torch.pow computes it: by products and roots."""

        def do(name: str, *operands: Value) -> Value:
            return self.let(Compute(ELEMENTWISE[name], operands, held))

        base, exponent = args
        constant = exponent.value if isinstance(exponent, Number) else None
        if constant == 2 or constant == 3:
            square = do("mul", base, base)
            return square if constant == 2 else do("mul", square, base)
        if held.is_float and constant in (0.5, -0.5, -1):
            return do({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[float(constant)], base)
        return do("pow", base, exponent)

    def _iota(self, node: Iota, index: Index) -> Value:
        """start + i * step, in double for floats, as torch.arange computes it."""
        held = DataType.Double if node.out.dtype.is_float else DataType.Int
        position = self.convert(self.let(IndexValue(self.at(index[0]))), held)
        step, start = (self.convert(self.scalar(s), held) for s in (node.step, node.start))
        scaled = position if step == Number(1, held) else self.let(Compute(ELEMENTWISE["mul"], (position, step), held))
        value = scaled if start == Number(0, held) else self.let(Compute(ELEMENTWISE["add"], (scaled, start), held))
        return self.convert(value, node.out.dtype)

    # ---- stores and accumulators --------------------------------------------------------------------------------------------------------------

    def store(self, roots: Sequence[tuple[Tensor, Tensor, Index]]) -> None:
        """Computes and stores these outputs at the open loops."""
        values = self.values([(stored, index) for _, stored, index in roots])
        for (output, stored, index), value in zip(roots, values, strict=True):
            self.emit(Store(self.outputs[output], self.at(flatten(index, self.space.shape(stored))), value))

    def accumulators(self, reduces: Sequence[Reduce], count: int, base: Size, var: str, hi: Size) -> list[str]:
        """One array of `count` lanes per reduction, holding its identity in the lanes [base, hi)."""
        names = []
        for reduce in reduces:
            names.append(name := self.fresh("acc"))
            self.depth[name] = len(self.scopes) - 1
            self.emit(Array(name, reduce.out.dtype.compute, count))
        self.open(var)
        for name, reduce in zip(names, reduces, strict=True):
            held = reduce.out.dtype.compute
            self.emit(Write(name, sizes.sub(sizes.symbol(var), base), Number(reduce.op.identity(held), held)))
        self.close("lanes", var, base, hi)
        return names

    def update(self, reduces: Sequence[Reduce], names: Sequence[str], lane: Size, values: Sequence[Value]) -> None:
        for reduce, name, value in zip(reduces, names, values, strict=True):
            held = reduce.out.dtype.compute
            self.emit(Write(name, lane, Merge(reduce.op, Element(name, lane, held), self.convert(value, held), held)))


def _steps_through(site: Size, outer: str, inner: str, extent: Size) -> bool:
    a, b = coefficient(site, outer), coefficient(site, inner)
    return a is not None and b is not None and a == sizes.mul(b, extent)


def _constant(value: bool | int | float, dtype: DataType) -> Number:
    """A constant rounded to its type, half types to what they can hold."""
    if dtype is DataType.Bool:
        return Number(bool(value), dtype)
    if dtype.is_int:
        return Number(int(value), dtype)
    return Number(torch.tensor(float(value), dtype=dtype.torch).item(), dtype.compute)


def operand_type(node: Pointwise) -> DataType:
    """The compute type in which a node's operands meet: torch's promotion of the tensors; scalars raise only the kind."""
    args = node.args[1:] if node.op.name == "where" else node.args
    tensors = [a.dtype.compute for a in args if isinstance(a, Tensor)]
    scalars = [a.dtype.compute for a in args if not isinstance(a, Tensor)]
    common = tensors[0] if tensors else scalars[0]
    for other in tensors[1:] if tensors else scalars[1:]:
        common = from_torch(torch.promote_types(common.torch, other.torch)) or common
    if tensors and any(_kind(s) > _kind(common) for s in scalars):
        common = max((s for s in scalars), key=_kind)
        common = DataType.Float if common.is_float else common
    if node.out.dtype.is_float and not common.is_float and node.op.name not in ("cast", "set", "div"):
        common = node.out.dtype.compute
    return common


def _kind(dtype: DataType) -> int:
    return 2 if dtype.is_float else 1 if dtype.is_int else 0


__all__ = ["Builder", "operand_type"]
