"""Symbolic integers: sizes, offsets and indices as one small expression type.

A `Size` is an int or an `Expr`. An `Expr` is a sum of products of atoms with integer factors, kept in one canonical order, so that equal sums
are structurally equal; atoms are symbols (`Sym`) and the calls that do not distribute (`Call`: floordiv, mod, min, max, chunk_len, chunk_lo).
All quantities are non-negative where it matters (sizes, indices), so division rounds towards zero and down alike.

`known_equal` may answer None: unknown is never yes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Union


@dataclass(frozen=True, slots=True)
class Sym:
    """A named unknown: an input's size (`i0`), a mesh coordinate (`x`), a loop index, a kernel's size argument."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Call:
    """A function of sizes that does not distribute over sums."""

    function: str
    args: tuple[Size, ...]

    def __str__(self) -> str:
        if self.function in _INFIX:
            left, right = (to_text(a) for a in self.args)
            left = f"({left})" if " " in left else left
            right = f"({right})" if not right.isidentifier() and not right.isdigit() else right
            return f"{left} {_INFIX[self.function]} {right}"
        return f"{self.function}({', '.join(to_text(a) for a in self.args)})"


_INFIX = {"floordiv": "//", "mod": "%"}
DIM = "i"  # symbols of input dims begin so
Atom = Union[Sym, Call]
Monomial = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Expr:
    """Sum of `factor * atom * atom …`; never a plain integer, which stays an int."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Size) -> Size:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Size) -> Size:
        return sub(self, other)

    def __rsub__(self, other: Size) -> Size:
        return sub(other, self)

    def __mul__(self, other: Size) -> Size:
        return mul(self, other)

    __rmul__ = __mul__

    def __str__(self) -> str:
        return to_text(self)


Size = Union[int, Expr]


def symbol(name: str) -> Expr:
    return Expr((((Sym(name),), 1),))


def _terms(value: Size) -> dict[Monomial, int]:
    if isinstance(value, int):
        return {(): value} if value else {}
    return dict(value.terms)


def _build(terms: Mapping[Monomial, int]) -> Size:
    kept = {m: f for m, f in terms.items() if f}
    if not kept:
        return 0
    if set(kept) == {()}:
        return kept[()]
    return Expr(tuple(sorted(kept.items(), key=lambda item: (-len(item[0]), [str(a) for a in item[0]]))))


def add(*values: Size) -> Size:
    total: dict[Monomial, int] = {}
    for value in values:
        for monomial, factor in _terms(value).items():
            total[monomial] = total.get(monomial, 0) + factor
    return _build(total)


def sub(a: Size, b: Size) -> Size:
    return add(a, mul(-1, b))


def mul(*values: Size) -> Size:
    product: dict[Monomial, int] = {(): 1}
    for value in values:
        following: dict[Monomial, int] = {}
        for m1, f1 in product.items():
            for m2, f2 in _terms(value).items():
                key = tuple(sorted(m1 + m2, key=str))
                following[key] = following.get(key, 0) + f1 * f2
        product = following
    return _build(product)


def _call(function: str, *args: Size) -> Size:
    if all(isinstance(a, int) for a in args):
        return _FUNCTIONS[function](*args)
    return Expr((((Call(function, args),), 1),))


def _divides(divisor: int, value: Size) -> bool:
    return all(f % divisor == 0 for f in _terms(value).values())


def exact_quotient(a: Size, b: Size) -> Size | None:
    """a / b where every term of `a` holds all of `b`'s single term; else None. `exact_quotient(4*i0*i1, 2*i1) == 2*i0`."""
    if b == 1 or a == 0:
        return a
    divisor = _terms(b)
    if len(divisor) != 1:
        return 1 if a == b else None
    ((monomial, factor),) = divisor.items()
    result: dict[Monomial, int] = {}
    for m, f in _terms(a).items():
        rest = list(m)
        for atom in monomial:
            if atom not in rest:
                return 1 if a == b else None
            rest.remove(atom)
        if f % factor:
            return None
        result[tuple(rest)] = f // factor
    return _build(result)


def floordiv(a: Size, b: Size) -> Size:
    quotient = exact_quotient(a, b)
    return quotient if quotient is not None else _call("floordiv", a, b)


def mod(a: Size, b: Size) -> Size:
    if b == 1 or a == 0 or exact_quotient(a, b) is not None:
        return 0
    return _call("mod", a, b)


def ceildiv(a: Size, b: Size) -> Size:
    quotient = exact_quotient(a, b)
    return quotient if quotient is not None else floordiv(add(a, sub(b, 1)), b)


def minimum(a: Size, b: Size) -> Size:
    return a if a == b else _call("min", a, b)


def maximum(a: Size, b: Size) -> Size:
    return a if a == b else _call("max", a, b)


def joined(a: Size, b: Size) -> Size:
    """The size of a dim that two operands share, of which one may turn out to be 1 and repeat."""
    if a == 1 or a == b:
        return b
    return a if b == 1 else _call("joined", a, b)


def may_be_one(size: Size) -> bool:
    """Whether a size is settled only when it is known: it was computed, and where it is then 1 it broadcasts. A dim of an input, which is a
    symbol by itself, never does."""
    if isinstance(size, int):
        return False
    ((monomial, factor), *more) = size.terms
    return bool(more) or factor != 1 or len(monomial) != 1 or not isinstance(monomial[0], Sym) or not monomial[0].name.startswith(DIM)


# ---- how torch.chunk cuts a dim -------------------------------------------------------------------------------------------------------------


def chunk_size(n: Size, parts: int, grain: Size = 1) -> Size:
    """Length of every full chunk when `n` elements are cut into `parts` by torch.chunk's ceil rule, never inside `grain` elements."""
    return mul(ceildiv(ceildiv(n, grain), parts), grain)


def chunk_lo(n: Size, parts: int, coordinate: Size, grain: Size = 1) -> Size:
    """First index of chunk `coordinate`: chunk k starts at min(n, k * chunk_size)."""
    if is_even(n, parts, grain):
        return mul(coordinate, floordiv(n, parts))
    return _call("chunk_lo", n, parts, coordinate, grain)


def chunk_len(n: Size, parts: int, coordinate: Size, grain: Size = 1) -> Size:
    """Length of chunk `coordinate`; an int where all chunks are equal. Later chunks may be shorter, or empty."""
    if is_even(n, parts, grain):
        return floordiv(n, parts)
    return _call("chunk_len", n, parts, coordinate, grain)


def is_even(n: Size, parts: int, grain: Size = 1) -> bool:
    """Whether all chunks are known to have the same length."""
    return exact_quotient(n, mul(parts, grain)) is not None


def _chunk_lo(n: int, parts: int, coordinate: int, grain: int) -> int:
    return min(n, coordinate * -(-(-(-n // grain)) // parts) * grain)


def _chunk_len(n: int, parts: int, coordinate: int, grain: int) -> int:
    return _chunk_lo(n, parts, coordinate + 1, grain) - _chunk_lo(n, parts, coordinate, grain)


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "joined": lambda a, b: b if a == 1 else a,
    "chunk_lo": _chunk_lo,
    "chunk_len": _chunk_len,
}


# ---- asking and rewriting -------------------------------------------------------------------------------------------------------------------


def known_equal(a: Size, b: Size) -> bool | None:
    """True or False where it is certain, else None."""
    if a == b:
        return True
    difference = sub(a, b)
    return False if isinstance(difference, int) else None


def substitute(value: Size, binding: Mapping[str, Size]) -> Size:
    """The same expression with symbols replaced; an int when all of them are bound to ints."""
    if isinstance(value, int):
        return value
    return _substitute(value, tuple(sorted(binding.items(), key=lambda kv: kv[0])))


@lru_cache(maxsize=65536)
def _substitute(value: Expr, binding: tuple[tuple[str, Size], ...]) -> Size:
    table = dict(binding)
    total: list[Size] = []
    for monomial, factor in value.terms:
        parts: list[Size] = [factor]
        for atom in monomial:
            if isinstance(atom, Sym):
                parts.append(table.get(atom.name, Expr((((atom,), 1),))))
            else:
                parts.append(rebuild(atom.function, tuple(substitute(a, table) for a in atom.args)))
        total.append(mul(*parts))
    return add(*total)


def rebuild(function: str, args: tuple[Size, ...]) -> Size:
    """Calls a function anew, so that arguments that became numbers simplify."""
    if function == "chunk_lo":
        return chunk_lo(args[0], args[1], args[2], args[3])  # type: ignore[arg-type]
    if function == "chunk_len":
        return chunk_len(args[0], args[1], args[2], args[3])  # type: ignore[arg-type]
    return {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum, "joined": joined}[function](*args)


def evaluate(value: Size, binding: Mapping[str, int]) -> int:
    """The number that `value` is under `binding`; KeyError names a symbol that has none."""
    result = substitute(value, binding)
    if isinstance(result, int):
        return result
    raise KeyError(", ".join(sorted(symbols(result))))


def symbols(value: Size) -> set[str]:
    if isinstance(value, int):
        return set()
    found: set[str] = set()
    for monomial, _ in value.terms:
        for atom in monomial:
            if isinstance(atom, Sym):
                found.add(atom.name)
            else:
                for arg in atom.args:
                    found |= symbols(arg)
    return found


def product(values: Iterable[Size]) -> Size:
    return mul(*values)


def to_text(value: Size) -> str:
    """Python text; calls other than // and % are spelled as functions that `interfuse.run` has."""
    if isinstance(value, int):
        return str(value)
    pieces = []
    for monomial, factor in value.terms:
        alone = len(monomial) == 1 and factor == 1 and len(value.terms) == 1
        atoms = [f"({a})" if isinstance(a, Call) and a.function in _INFIX and not alone else str(a) for a in monomial]
        if factor not in (1, -1) or not atoms:
            atoms.insert(0, str(abs(factor)))
        pieces.append(("-" if factor < 0 else "+", "*".join(atoms)))
    text = "".join(f" {sign} {body}" for sign, body in pieces)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]
