"""Element types: their names, their torch counterparts, and which are kept in which precision while computing."""

from __future__ import annotations

import enum

import torch

from interfuse.errors import DtypeError


class DataType(enum.Enum):
    """Element type of a tensor or scalar; a member is always true.

    `Int` is 64 bits wide. `Index` is what counts and positions are, 64 bits here. `Null` stands for a type that was not given.
    """

    Double = "f64"
    Float = "f32"
    Half = "f16"
    BFloat16 = "bf16"
    Float8_e4m3fn = "f8e4m3"
    Float8_e5m2 = "f8e5m2"
    Float8_e8m0fnu = "f8e8m0"
    Float4_e2m1fn = "f4e2m1"
    Float4_e2m1fn_x2 = "f4e2m1x2"
    Int = "i64"
    Int32 = "i32"
    UInt64 = "u64"
    Index = "index"
    Bool = "bool"
    ComplexFloat = "c64"
    ComplexDouble = "c128"
    Null = "null"

    __hash__ = object.__hash__  # members are compared by identity; enum's own hash goes through the name, at ten times the cost

    def __str__(self) -> str:
        return f"DataType.{self.name}"

    @property
    def short(self) -> str:
        """The spelling in printed forms: `f32`, `bf16`, `i64`."""
        return self.value

    @property
    def torch(self) -> torch.dtype:
        """The torch dtype. Raises DtypeError for `Null` and for types that this torch does not have."""
        found = _TORCH.get(self)
        if found is None:
            raise DtypeError(f"{self} has no counterpart in torch {torch.__version__}")
        return found

    @property
    def itemsize(self) -> int:
        """Bytes of one element; two packed 4-bit numbers are one element of `Float4_e2m1fn_x2`."""
        return self.torch.itemsize

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_low_precision(self) -> bool:
        """Narrower than f32: computed in float, and results of arithmetic are Float."""
        return self in _NARROW

    @property
    def is_int(self) -> bool:
        return self in _INTS

    @property
    def is_complex(self) -> bool:
        return self in _COMPONENT

    @property
    def component(self) -> DataType:
        """The type of a complex number's parts; any other type is its own."""
        return _COMPONENT.get(self, self)

    @property
    def complex(self) -> DataType:
        """The complex type whose parts hold this floating type."""
        return self if self.is_complex else DataType.ComplexDouble if self is DataType.Double else DataType.ComplexFloat

    @property
    def compute(self) -> DataType:
        """The type in which kernels hold a value: half types are computed in float."""
        return DataType.Float if self in _NARROW else self


_NARROW = frozenset(
    {
        DataType.Half,
        DataType.BFloat16,
        DataType.Float8_e4m3fn,
        DataType.Float8_e5m2,
        DataType.Float8_e8m0fnu,
        DataType.Float4_e2m1fn,
        DataType.Float4_e2m1fn_x2,
    }
)
_FLOATS = _NARROW | {DataType.Float, DataType.Double}
_INTS = frozenset({DataType.Int, DataType.Int32, DataType.UInt64, DataType.Index})
_COMPONENT = {DataType.ComplexFloat: DataType.Float, DataType.ComplexDouble: DataType.Double}
_TORCH_NAMES = {
    DataType.Double: "float64",
    DataType.Float: "float32",
    DataType.Half: "float16",
    DataType.BFloat16: "bfloat16",
    DataType.Float8_e4m3fn: "float8_e4m3fn",
    DataType.Float8_e5m2: "float8_e5m2",
    DataType.Float8_e8m0fnu: "float8_e8m0fnu",
    DataType.Float4_e2m1fn_x2: "float4_e2m1fn_x2",
    DataType.Index: "int64",
    DataType.Int: "int64",
    DataType.Int32: "int32",
    DataType.UInt64: "uint64",
    DataType.Bool: "bool",
    DataType.ComplexFloat: "complex64",
    DataType.ComplexDouble: "complex128",
}
_TORCH: dict[DataType, torch.dtype] = {kind: getattr(torch, name) for kind, name in _TORCH_NAMES.items() if hasattr(torch, name)}
_FROM_TORCH = {dtype: kind for kind, dtype in _TORCH.items()}  # int64 is Int, which comes after Index


def from_torch(dtype: torch.dtype) -> DataType | None:
    """The `DataType` of a torch dtype, or None where Interfuse has none."""
    return _FROM_TORCH.get(dtype)


def of_python(value: bool | int | float | complex) -> DataType:
    """The type of a Python number: bool, 64-bit integer, double or complex of doubles."""
    if isinstance(value, bool):
        return DataType.Bool
    if isinstance(value, int):
        return DataType.Int
    return DataType.ComplexDouble if isinstance(value, complex) else DataType.Double


def convert(value: bool | int | float | complex, dtype: DataType) -> bool | int | float | complex:
    """A Python number as `dtype`: fractions and imaginary parts are dropped, infinities become the integer that is nearest; i32 wraps."""
    if dtype.is_complex:
        return complex(value)
    number = value.real if isinstance(value, complex) else value
    if dtype is DataType.Bool:
        return bool(value)
    if not dtype.is_int:
        return float(number)
    limits = torch.iinfo(dtype.torch)
    if isinstance(number, float):
        return 0 if number != number else int(min(max(number, limits.min), limits.max))
    whole = int(number)
    return whole if limits.min <= whole <= limits.max else (whole - limits.min) % (limits.max - limits.min + 1) + limits.min
