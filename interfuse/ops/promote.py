"""Result types of `fd.ops`.

PyTorch's three categories (tensors with dims, 0-dim tensors, scalars; a lower category raises the result only by kind), with nvFuser's
difference: arithmetic on half types gives Float. Capture from PyTorch spells its casts, so it never meets that difference.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from interfuse.errors import DtypeError
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Operand, Tensor


class Rule(enum.Enum):
    """How an elementwise op computes and what it gives."""

    ARITHMETIC = "promote; half → f32"
    FLOATING = "promote; bool, ints and half → f32"
    PLAIN = "promote"
    COMPARE = "operands promote; bool"


_KIND = {DataType.Bool: 0, DataType.Int32: 1, DataType.Int: 1, DataType.Half: 2, DataType.BFloat16: 2, DataType.Float: 2, DataType.Double: 2}
_RANK = {DataType.Bool: 0, DataType.Int32: 1, DataType.Int: 2, DataType.Half: 3, DataType.BFloat16: 3, DataType.Float: 4, DataType.Double: 5}


def _higher(a: DataType, b: DataType) -> DataType:
    if {a, b} == {DataType.Half, DataType.BFloat16}:
        return DataType.Float
    return a if _RANK[a] >= _RANK[b] else b


def common_type(operands: Sequence[Operand]) -> DataType:
    """The type that PyTorch would compute in."""
    by_category: dict[int, DataType] = {}
    for operand in operands:
        category = (2 if operand.shape else 1) if isinstance(operand, Tensor) else 0
        seen = by_category.get(category)
        by_category[category] = operand.dtype if seen is None else _higher(seen, operand.dtype)
    categories = sorted(by_category, reverse=True)
    result = by_category[categories[0]]
    for category in categories[1:]:
        other = by_category[category]
        if _KIND[other] > _KIND[result]:
            result = DataType.Float if category == 0 and other is DataType.Double else other
    return result


def compute_type(rule: Rule, operands: Sequence[Operand]) -> DataType:
    """The type that operands are cast to; also the result type, except for comparisons, which give Bool."""
    common = common_type(operands)
    if rule is Rule.PLAIN:
        return common
    if common.is_low_precision:
        return DataType.Float
    if rule is Rule.FLOATING and not common.is_float:
        return DataType.Float
    return common


def sum_type(dtype: DataType) -> DataType:
    """Sums and products of bools and ints are 64-bit."""
    return dtype if dtype.is_float else DataType.Int


def require_float(name: str, dtype: DataType, *, low_precision: bool = True) -> None:
    if not dtype.is_float or (dtype.is_low_precision and not low_precision):
        raise DtypeError(f"{name} takes {'' if low_precision else 'f32 or f64 '}floating tensors, not {dtype.short}; cast first")
