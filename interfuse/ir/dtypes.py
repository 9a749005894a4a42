"""Element types: their names, their torch counterparts, and which are kept in which precision while computing."""

from __future__ import annotations

import enum

import torch


class DataType(enum.Enum):
    """Element type of a tensor or scalar. `Int` is 64 bits wide, as in nvFuser; a member is always true."""

    Double = "f64"
    Float = "f32"
    Half = "f16"
    BFloat16 = "bf16"
    Int = "i64"
    Int32 = "i32"
    Bool = "bool"

    def __str__(self) -> str:
        return f"DataType.{self.name}"

    @property
    def short(self) -> str:
        """The spelling in printed forms: `f32`, `bf16`, `i64`."""
        return self.value

    @property
    def torch(self) -> torch.dtype:
        return _TORCH[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _TORCH[self].itemsize

    @property
    def is_float(self) -> bool:
        return self in (DataType.Double, DataType.Float, DataType.Half, DataType.BFloat16)

    @property
    def is_low_precision(self) -> bool:
        return self in (DataType.Half, DataType.BFloat16)

    @property
    def is_int(self) -> bool:
        return self in (DataType.Int, DataType.Int32)

    @property
    def compute(self) -> DataType:
        """The type in which kernels hold a value: half types are computed in float."""
        return DataType.Float if self.is_low_precision else self


_TORCH = {
    DataType.Double: torch.float64,
    DataType.Float: torch.float32,
    DataType.Half: torch.float16,
    DataType.BFloat16: torch.bfloat16,
    DataType.Int: torch.int64,
    DataType.Int32: torch.int32,
    DataType.Bool: torch.bool,
}
_FROM_TORCH = {v: k for k, v in _TORCH.items()}


def from_torch(dtype: torch.dtype) -> DataType | None:
    """The `DataType` of a torch dtype, or None where Interfuse has none."""
    return _FROM_TORCH.get(dtype)


def of_python(value: bool | int | float) -> DataType:
    """The type of a Python number: bool, 64-bit integer or double."""
    if isinstance(value, bool):
        return DataType.Bool
    return DataType.Int if isinstance(value, int) else DataType.Double
