"""Values and indices of blocks as Triton expressions, and what is known of names on the way: spans, bounds, uses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Node, Pointwise
from interfuse.ir.sizes import Atom, Call, Expr, Size
from interfuse.kernel.blocks import BlockLaunch, For, Span
from interfuse.kernel.nodes import (
    Argument,
    Compute,
    Convert,
    Element,
    IndexValue,
    Let,
    Load,
    Mask,
    Merge,
    Number,
    Ref,
    Select,
    Value,
    parts,
)

HELD = {
    DataType.Double: "tl.float64",
    DataType.Float: "tl.float32",
    DataType.Half: "tl.float16",
    DataType.BFloat16: "tl.bfloat16",
    DataType.Int: "tl.int64",
    DataType.Int32: "tl.int32",
    DataType.Bool: "tl.int1",
}
NEAR = 1.6  # |x| up to which sin needs no reduction of its argument

PATTERNS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "tanh": "_tanh({0})",
    "sin": "_sin({0})",
    "cos": "_cos({0})",
    "sqrt": "tl.sqrt_rn({0})",
    "rsqrt": "tl.rsqrt({0})",
    "reciprocal": "1.0 / {0}",
    "relu": "_max_nan({0}, 0.0)",
    "sigmoid": "_sigmoid({0})",
    "silu": "_silu({0})",
    "pow": "libdevice.pow({0}, {1})",
    "maximum": "_max_nan({0}, {1})",
    "minimum": "_min_nan({0}, {1})",
    "where": "tl.where({0}, {1}, {2})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "cast": "{0}",
    "set": "{0}",
}
DOUBLE = {"tanh": "libdevice.tanh({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})", "sqrt": "tl.sqrt({0})"}
INTEGER = {
    "div": "{0} // {1}",
    "relu": "tl.maximum({0}, 0)",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "pow": "_ipow({0}, {1})",
}
SCALAR = {"sin": "tl.sin({0})", "cos": "tl.cos({0})"}  # where there is no block whose lanes could agree on a branch


class Names:
    """What is known of the names of one kernel while its text is written."""

    def __init__(self, launch: BlockLaunch) -> None:
        self.wide, body = launch.wide, launch.body
        self.products = [(p.terms[0][0], f"q{i}") for i, p in enumerate(launch.products) if isinstance(p, Expr)]
        self.products.sort(key=lambda product: -len(product[0]))
        self.spans: dict[str, Span] = {}
        self.indices: dict[str, frozenset[str]] = {}
        self.values: dict[str, frozenset[str]] = {}
        self.bounds: dict[str, tuple[float, float]] = {}
        self.lets = {s.name: s.value for s in _lets(body)}
        self.uses = _uses(body, self.lets)

    def is_used(self, name: str) -> bool:
        return self.uses[name] > 0

    def is_ragged(self, span: str) -> bool:
        return self.spans[span].ragged

    def size(self, value: Size) -> str:
        """A size or an index as text, products that are arguments by their names."""
        return size_text(self._with_products(value)) if self.products else size_text(value)

    def _with_products(self, value: Size) -> Size:
        if isinstance(value, int):
            return value
        total: list[Size] = []
        for monomial, factor in value.terms:
            atoms = [self._atom(a) for a in monomial]
            for product, name in self.products:
                wanted = [Expr((((a,), 1),)) for a in product]
                rest = list(atoms)
                if all(_removed(rest, w) for w in wanted):
                    atoms = [*rest, sizes.symbol(name)]
            total.append(sizes.mul(factor, *atoms))
        return sizes.add(*total)

    def _atom(self, atom: Atom) -> Any:
        if isinstance(atom, Call):
            return sizes.rebuild(atom.function, tuple(self._with_products(x) for x in atom.args))
        return Expr((((atom,), 1),))

    # ---- defining ---------------------------------------------------------------------------------------------------------------------------

    def define_span(self, span: Span) -> None:
        self.spans[span.var] = span
        self.indices[span.var] = frozenset({span.var})

    def define_index(self, name: str, index: Size) -> None:
        self.indices[name] = self.spans_of(index)

    def define(self, name: str, value: Value) -> None:
        self.values[name] = self.spans_in(value)
        bounds = self.bounds_of(value)
        if bounds is not None:
            self.bounds[name] = bounds

    def define_block(self, name: str) -> None:
        """A tile: it has every axis."""
        self.values[name] = frozenset({"*"})

    def define_results(self, *names: str) -> None:
        for name in names:
            self.values[name] = frozenset()

    # ---- asking -----------------------------------------------------------------------------------------------------------------------------

    def spans_of(self, index: Size) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for name in sizes.symbols(index):
            found |= self.indices.get(name, frozenset())
        return found

    def spans_of_mask(self, mask: Mask) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for within in mask:
            found |= self.spans_of(within.index) | self.spans_of(within.bound)
        return found

    def spans_in(self, value: Value) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        match value:
            case Load():
                found = self.spans_of(value.index) | self.spans_of_mask(value.mask)
            case Select():
                found = self.spans_of_mask(value.mask)
            case IndexValue():
                found = self.spans_of(value.index)
            case Ref():
                found = self.values.get(value.name, frozenset())
        for part in parts(value):
            found |= self.spans_in(part)
        return found

    def covers(self, value: Value, axis: int, rank: int) -> bool:
        """Whether a value has lanes along an axis of the tile."""
        found = self.spans_in(value)
        return "*" in found or any(self.spans[v].axis == axis for v in found if v in self.spans)

    def inside(self, spans: Iterable[str]) -> str:
        """The condition that lanes of these spans are not beyond the end."""
        names = sorted(spans, key=lambda v: (self.spans[v].axis, v))
        return f"{names[0]}_in" if len(names) == 1 else f"({' & '.join(f'{v}_in' for v in names)})" if names else ""

    def place(self, index: Size, spans: frozenset[str]) -> str:
        """An address with lanes along all of `spans`, also those that it does not depend on."""
        text = self.size(index)
        missing = sorted(spans - self.spans_of(index))
        text += "".join(f" + 0 * {v}" for v in missing)
        return f"({text})" if " " in text else text

    def bounds_of(self, value: Value) -> tuple[float, float] | None:
        """Limits of a value that follow from the functions that made it."""
        match value:
            case Number():
                return (float(value.value), float(value.value)) if math.isfinite(value.value) else None
            case Ref():
                return self.bounds.get(value.name)
            case Convert():
                inner = self.bounds_of(value.arg)
                return None if inner is None or not value.dtype.is_float else (inner[0] * 1.01, inner[1] * 1.01)
            case Compute():
                return self._computed_bounds(value)
            case _:
                return None

    def _computed_bounds(self, value: Compute) -> tuple[float, float] | None:
        name = value.op.name
        if name in ("sin", "cos", "tanh"):
            return (-1.0, 1.0)
        if name == "sigmoid":
            return (0.0, 1.0)
        if name not in ("add", "sub", "mul"):
            return None
        a, b = (self.bounds_of(arg) for arg in value.args)
        if a is None or b is None:
            return None
        if name == "add":
            return (a[0] + b[0], a[1] + b[1])
        if name == "sub":
            return (a[0] - b[1], a[1] - b[0])
        corners = [x * y for x in a for y in b]
        return (min(corners), max(corners))


def _removed(values: list[Any], value: Any) -> bool:
    if value in values:
        values.remove(value)
        return True
    return False


def _lets(body: Iterable[Any]) -> Iterable[Let]:
    for statement in body:
        if isinstance(statement, For):
            yield from _lets(statement.body)
        elif isinstance(statement, Let):
            yield statement


def _uses(body: Sequence[Any], lets: dict[str, Value]) -> Counter[str]:
    """How often each name is read by statements that are written, after formulas have been put in place of some."""
    found: Counter[str] = Counter()

    def count(value: Value) -> None:
        if isinstance(value, Compute) and (formula := special(value, lets)) is not None:
            count(formula[1])
            return
        if isinstance(value, Ref):
            found[value.name] += 1
            if found[value.name] == 1 and value.name in lets:
                count(lets[value.name])
        for part in parts(value):
            count(part)

    def visit(statements: Iterable[Any]) -> None:
        for statement in statements:
            if isinstance(statement, For):
                visit(statement.body)
            elif not isinstance(statement, Let) and (value := getattr(statement, "value", None)) is not None:
                if not isinstance(value, (bool, int, float)):
                    count(value)

    visit(body)
    return found


def special(value: Compute, lets: dict[str, Value]) -> tuple[str, Value] | None:
    """A formula that is faster and no less exact than its parts: (function, its operand)."""
    if value.dtype is not DataType.Float or value.op.name not in ("add", "sub"):
        return None
    a, b = value.args
    if value.op.name == "add" and (_is_one(a) or _is_one(b)):
        inner = _made(b if _is_one(a) else a, "tanh", lets)
        return ("_one_plus_tanh", inner.args[0]) if inner is not None else None
    if value.op.name == "sub" and _is_one(a):
        square = _made(b, "mul", lets)
        if square is not None and square.args[0] == square.args[1]:
            inner = _made(square.args[0], "tanh", lets)
            return ("_one_minus_tanh_squared", inner.args[0]) if inner is not None else None
    return None


def _is_one(value: Value) -> bool:
    return isinstance(value, Number) and value.value == 1


def _made(value: Value, op: str, lets: dict[str, Value]) -> Compute | None:
    found = lets.get(value.name) if isinstance(value, Ref) else value
    return found if isinstance(found, Compute) and found.op.name == op else None


# ---- values ---------------------------------------------------------------------------------------------------------------------------------


def held(dtype: DataType) -> str:
    return HELD[dtype.compute]


def value_text(value: Value, names: Names) -> str:
    match value:
        case Load():
            return _load(value, names)
        case Number():
            return number_text(value.value, value.dtype.compute)
        case Argument() | Ref():
            return value.name
        case IndexValue():
            text = names.size(value.index)
            return f"tl.full((), {text}, tl.int64)" if isinstance(value.index, int) else f"({text}).to(tl.int64)"
        case Compute():
            return _compute(value, names)
        case Convert():
            return _convert(value, names)
        case Select():
            return f"tl.where({_mask(value.mask, names)}, {value_text(value.then, names)}, {value_text(value.other, names)})"
        case Element() | Merge():
            raise TypeError(value)
        case _:
            assert_never(value)


def _load(load: Load, names: Names) -> str:
    used = names.spans_of(load.index) | names.spans_of_mask(load.mask)
    guards = [g for g in (names.inside(v for v in used if names.is_ragged(v)), _mask(load.mask, names) if load.mask else "") if g]
    guard = f", mask={' & '.join(guards)}, other=0" if guards else ""
    text = f"tl.load({load.buffer} + {names.place(load.index, used)}{guard})"
    return f"{text}.to({held(load.dtype)})" if load.dtype.is_low_precision else text


def _mask(mask: Mask, names: Names) -> str:
    tests = []
    for within in mask:
        index = names.size(within.index)
        tests.append(f"({index} >= 0) & ({index} < {names.size(within.bound)})")
    return f"({' & '.join(tests)})"


def _compute(compute: Compute, names: Names) -> str:
    formula = special(compute, names.lets)
    if formula is not None:
        return f"{formula[0]}({value_text(formula[1], names)})"
    args = [value_text(a, names) for a in compute.args]
    if all(isinstance(a, Number) for a in compute.args):
        args[0] = f"tl.full((), {args[0]}, {held(compute.args[0].dtype)})"
    common, name = compute.args[-1].dtype.compute, compute.op.name
    pattern = PATTERNS[name]
    if not common.is_float:
        pattern = INTEGER.get(name, pattern)
    elif common is DataType.Double:
        pattern = DOUBLE.get(name, pattern)
    elif name == "sin" and (bounds := names.bounds_of(compute.args[0])) is not None and -NEAR <= bounds[0] and bounds[1] <= NEAR:
        pattern = "_sin_near({0})"
    elif name == "div" and names.spans_in(compute.args[1]) < names.spans_in(compute.args[0]) and not isinstance(compute.args[1], Number):
        pattern = "{0} * (1.0 / {1})"  # one division per row or column, not per element
    elif not names.spans_in(compute.args[0]):
        pattern = SCALAR.get(name, pattern)
    return pattern.format(*args)


def _convert(convert: Convert, names: Names) -> str:
    value = value_text(convert.arg, names)
    value = f"({value})" if not value.replace("_", "").isalnum() else value
    source, wanted = convert.arg.dtype.compute, convert.dtype
    if wanted is DataType.Bool:
        return f"{value} != 0"
    if wanted.is_low_precision:
        return f"{value}.to({HELD[wanted]}).to(tl.float32)"
    return f"{value}.to({HELD[wanted]})" if source is not wanted.compute else value


def number_text(value: bool | int | float, dtype: DataType) -> str:
    """A literal of exactly this value; negative ones in parentheses, so that they may stand anywhere."""
    if dtype is DataType.Bool:
        return "True" if value else "False"
    if dtype.is_int:
        return str(int(value)) if value >= 0 else f"({int(value)})"
    if math.isnan(value) or math.isinf(value):
        return f'float("{value}")'
    text = repr(float(value)) if dtype is DataType.Double else _shortest(float(value))
    if dtype is DataType.Double and float(value) not in (0.0, 1.0):
        return f"tl.full((), {text}, tl.float64)"
    return f"({text})" if text.startswith("-") else text


def _shortest(value: float) -> str:
    digits = f"{value:.9g}"
    return digits if any(c in digits for c in ".e") else digits + ".0"


def size_text(value: Size) -> str:
    return sizes.to_text(value)


def unwritten(node: Node) -> str | None:
    """Why Triton has no words for a node, or None."""
    if isinstance(node, Pointwise) and node.op.name not in PATTERNS:
        return f"{node.op.name} is not written in Triton yet"
    return None
