"""Addresses: coefficients of loops, splitting and joining indices where dims are merged and cut.

All functions work on `Size` expressions over loop variables and size arguments, both non-negative. Proofs may fail, never lie: a split that
cannot be proved stays a `//` and a `%`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interfuse.ir import sizes
from interfuse.ir.sizes import Call, Expr, Monomial, Size, Sym


def terms(value: Size) -> tuple[tuple[Monomial, int], ...]:
    """The sum as (atoms, factor) pairs."""
    if isinstance(value, int):
        return (((), value),) if value else ()
    return value.terms


def coefficient(value: Size, loop: str) -> Size | None:
    """What `loop` is multiplied with in `value` (0 if absent); None where `value` is not linear in it."""
    if isinstance(value, int):
        return 0
    total: list[Size] = []
    for monomial, factor in value.terms:
        rest = tuple(a for a in monomial if not (isinstance(a, Sym) and a.name == loop))
        if len(monomial) - len(rest) > 1 or any(isinstance(a, Call) and loop in sizes.symbols(Expr((((a,), 1),))) for a in rest):
            return None
        if len(rest) < len(monomial):
            total.append(Expr(((rest, factor),)) if rest else factor)
    return sizes.add(*total)


def _most(value: Size, extents: Mapping[str, Size]) -> Size | None:
    """An upper bound of a sum of non-negative terms, or None."""
    total: list[Size] = []
    for monomial, factor in terms(value):
        if factor < 0:
            return None
        parts: list[Size] = [factor]
        for atom in monomial:
            if isinstance(atom, Sym):
                parts.append(sizes.sub(extents[atom.name], 1) if atom.name in extents else Expr((((atom,), 1),)))
            elif atom.function == "mod":
                parts.append(sizes.sub(atom.args[1], 1))
            else:
                return None
        total.append(sizes.mul(*parts))
    return sizes.add(*total)


def is_below(value: Size, bound: Size, extents: Mapping[str, Size]) -> bool:
    """Whether 0 <= value < bound is certain, for loops that run over `extents`."""
    most = _most(value, extents)
    if most is None:
        return False
    room = terms(sizes.sub(bound, most))
    return all(factor >= 0 for _, factor in room) and any(monomial == () and factor >= 1 for monomial, factor in room)


def divmod_of(value: Size, divisor: Size, extents: Mapping[str, Size]) -> tuple[Size, Size]:
    """value // divisor and value % divisor, split exactly where the rest provably stays below the divisor."""
    whole: list[Size] = []
    rest: list[Size] = []
    for monomial, factor in terms(value):
        term = Expr(((monomial, factor),)) if monomial else factor
        quotient = sizes.exact_quotient(term, divisor)
        (rest if quotient is None else whole).append(term if quotient is None else quotient)
    remainder = sizes.add(*rest)
    if is_below(remainder, divisor, extents):
        return sizes.add(*whole), remainder
    return _floordiv(value, divisor), sizes.mod(value, divisor)


def _floordiv(value: Size, divisor: Size) -> Size:
    """Nested divisions become one: (L // p) // q is L // (p*q)."""
    atom = _single_call(value)
    if atom is not None and atom.function == "floordiv":
        return sizes.floordiv(atom.args[0], sizes.mul(atom.args[1], divisor))
    return sizes.floordiv(value, divisor)


def _single_call(value: Size) -> Call | None:
    if isinstance(value, Expr) and len(value.terms) == 1:
        monomial, factor = value.terms[0]
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Call):
            return monomial[0]
    return None


def flatten(index: Sequence[Size], shape: Sequence[Size]) -> Size:
    """The row-major position of `index`; `(L // m, L % m)` over `(…, m)` is L again."""
    flat: Size = 0
    for i, n in zip(index, shape, strict=True):
        atom = _single_call(i)
        if atom is not None and atom.function == "mod" and atom.args[1] == n and flat == _floordiv(atom.args[0], n):
            flat = atom.args[0]
        else:
            flat = sizes.add(sizes.mul(flat, n), i)
    return flat


def unflatten(flat: Size, shape: Sequence[Size], extents: Mapping[str, Size]) -> list[Size]:
    """The index whose row-major position in `shape` is `flat`; the outermost needs no modulus."""
    index: list[Size] = []
    for n in reversed(shape[1:]):
        flat, last = divmod_of(flat, n, extents)
        index.append(last)
    return [flat, *reversed(index)] if shape else []


def reshape_groups(new: Sequence[Size], old: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Dims of two shapes of one count, in smallest groups whose products are equal; dims of size 1 belong to none.

    `[6, 4]` against `[2, 3, 4]` is `([0], [0, 1]), ([1], [2])`. Where products cannot be compared, the rest is one group.
    """
    left = [d for d, n in enumerate(new) if n != 1]
    right = [d for d, n in enumerate(old) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    a = b = 0
    while a < len(left) and b < len(right):
        i, j = a + 1, b + 1
        p, q = new[left[a]], old[right[b]]
        while p != q:
            grow_left = _is_smaller(p, q) if i < len(left) and j < len(right) else i < len(left)
            if grow_left and i < len(left):
                p, i = sizes.mul(p, new[left[i]]), i + 1
            elif j < len(right):
                q, j = sizes.mul(q, old[right[j]]), j + 1
            else:
                i, j = len(left), len(right)
                break
        groups.append((left[a:i], right[b:j]))
        a, b = i, j
    if a < len(left) or b < len(right):
        rest = (left[a:], right[b:])
        groups[-1:] = [(groups[-1][0] + rest[0], groups[-1][1] + rest[1])] if groups else [rest]
    return groups


def _is_smaller(p: Size, q: Size) -> bool:
    """A guess for which side of a group must grow: the one that divides the other."""
    if isinstance(p, int) and isinstance(q, int):
        return p < q
    return sizes.exact_quotient(q, p) is not None
