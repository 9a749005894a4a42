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
    FULL_FLOAT = "promote to f32 or f64, which it must be"
    BITWISE = "promote to bool or an integer, which it must be"
    INTEGRAL = "promote to an integer, which it must be"
    COMPARE = "operands promote; bool"
    LOGICAL = "operands as bool; bool"
    TEST = "bool"
    PART = "complex → its parts' type; else kept"


_PREDICATES = frozenset({Rule.COMPARE, Rule.LOGICAL, Rule.TEST})
_LADDER = (DataType.Bool, DataType.Int32, DataType.Int, DataType.UInt64, DataType.Index)
_RANK = {dtype: rank for rank, dtype in enumerate(_LADDER)}


def kind(dtype: DataType) -> int:
    """bool 0, integers 1, floating 2, complex 3."""
    return 3 if dtype.is_complex else 2 if dtype.is_float else 1 if dtype.is_int else 0


def higher(a: DataType, b: DataType) -> DataType:
    """The narrowest type that holds both; Index wins among integers."""
    if a is b:
        return a
    if DataType.Null in (a, b):
        raise DtypeError("an operand has no type (DataType.Null)")
    if a.is_complex or b.is_complex:
        parts = higher(a.component, b.component)
        return parts.complex if parts.is_float else DataType.ComplexFloat
    if a.is_float or b.is_float:
        if a.is_float and b.is_float:
            return DataType.Double if DataType.Double in (a, b) else DataType.Float
        return a if a.is_float else b
    return a if _RANK[a] >= _RANK[b] else b


def _combine(above: DataType | None, below: DataType | None) -> DataType | None:
    """A lower category raises the result by kind alone; complex over floating keeps the precision of the higher category."""
    if above is None or below is None:
        return above or below
    if kind(below) <= kind(above):
        return above
    return above.complex if below.is_complex and above.is_float else below


def common_type(operands: Sequence[Operand]) -> DataType:
    """The type that PyTorch would compute in."""
    dims: DataType | None = None
    zero_dims: DataType | None = None
    scalars: DataType | None = None
    for operand in operands:
        dtype = operand.dtype
        if not isinstance(operand, Tensor):
            dtype = DataType.Float if dtype.is_low_precision else dtype
            scalars = dtype if scalars is None else higher(scalars, dtype)
        elif operand.shape:
            dims = dtype if dims is None else higher(dims, dtype)
        else:
            zero_dims = dtype if zero_dims is None else higher(zero_dims, dtype)
    tensors = _combine(dims, zero_dims)
    if tensors is not None and scalars is not None:
        scalars = {DataType.Double: DataType.Float, DataType.ComplexDouble: DataType.ComplexFloat}.get(scalars, scalars)
    result = _combine(tensors, scalars)
    assert result is not None
    return result


def compute_type(rule: Rule, operands: Sequence[Operand]) -> DataType:
    """The type that operands are cast to. Raises DtypeError where the rule excludes it."""
    if rule is Rule.LOGICAL:
        return DataType.Bool
    common = operands[0].dtype if len(operands) == 1 else common_type(operands)
    if rule is Rule.BITWISE and not (common.is_int or common is DataType.Bool):
        raise DtypeError(f"operands of bits are bool or integers, not {common.short}; cast first")
    if rule is Rule.INTEGRAL and not common.is_int:
        raise DtypeError(f"operands are integers, not {common.short}; cast first")
    if rule is Rule.FULL_FLOAT and common not in (DataType.Float, DataType.Double):
        raise DtypeError(f"operands are f32 or f64, not {common.short}; cast first")
    if rule in (Rule.ARITHMETIC, Rule.FLOATING, Rule.COMPARE) and common.is_low_precision:
        return DataType.Float
    if rule is Rule.FLOATING and kind(common) < 2:
        return DataType.Float
    return common


def result_type(rule: Rule, computed: DataType) -> DataType:
    """What an op whose operands are `computed` gives."""
    if rule in _PREDICATES:
        return DataType.Bool
    return computed.component if rule is Rule.PART else computed


def sum_type(dtype: DataType) -> DataType:
    """Sums and products of bools and ints are 64-bit."""
    return DataType.Int if kind(dtype) < 2 else dtype


def require_float(name: str, dtype: DataType, *, low_precision: bool = True) -> None:
    if kind(dtype) < 2 or (dtype.is_low_precision and not low_precision):
        wanted = "floating or complex" if low_precision else "f32, f64 or complex"
        raise DtypeError(f"{name} takes {wanted} tensors, not {dtype.short}; cast first")
