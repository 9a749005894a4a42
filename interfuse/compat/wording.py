"""nvFuser's words for inputs that do not fit, which its users' tests look for; the core's own sentence follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from interfuse.compat.fusion import Fusion
from interfuse.compat.handles import TensorView, type_name
from interfuse.errors import InputError
from interfuse.frontend.handles import Val
from interfuse.ir.dtypes import from_torch


def reworded(error: InputError, fusion: Fusion, values: Sequence[Any]) -> InputError:
    """The same error with nvFuser's sentence in front, where it has one for this mistake."""
    for i, (declared, value) in enumerate(zip(fusion.inputs(), values, strict=False)):
        text = _tensor(i, declared, value) if isinstance(declared, TensorView) else _scalar(i, declared, value, fusion)
        if text:
            return type(error)(f"{text} ({error})")
    return error


def _tensor(i: int, declared: TensorView, value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"Expected input {i}, {declared}, to be an at::Tensor but got scalar {_number(value)}"
    got = from_torch(value.dtype)
    if got is not declared.dtype():
        name = str(value.dtype) if got is None else type_name(got)
        return f"Expected input {i}, {declared}, to be bound to a tensor of dtype {type_name(declared.dtype())}, but got a tensor of dtype {name}"
    return ""


def _scalar(i: int, declared: Val, value: Any, fusion: Fusion) -> str:
    if isinstance(value, torch.Tensor):
        got = from_torch(value.dtype)
        kind = str(value.dtype) if got is None else type_name(got)
        return f"Expected input {i}, {_name(i, fusion)}, to be a scalar but got {kind} tensor of rank {value.ndim}"
    dtype = declared.dtype()
    wrong = isinstance(value, complex) > dtype.is_complex or (isinstance(value, float) and not (dtype.is_float or dtype.is_complex))
    return f"Scalar value {_number(value)} is not compatible with the expected data type: {type_name(dtype)}." if wrong else ""


def _name(position: int, fusion: Fusion) -> str:
    """nvFuser numbers all scalars of a fusion: a tensor has one per symbolic dim, and one more."""
    number = 0
    for value in fusion.inputs()[:position]:
        number += 1 if isinstance(value, Val) else 1 + sum(not isinstance(s, int) for s in value.tensor.shape)
    dtype = fusion.inputs()[position].dtype()
    return f"{'b' if dtype.short == 'bool' else 'i' if dtype.is_int else 'd'}{number}"


def _number(value: Any) -> str:
    if isinstance(value, complex):
        return f"({value.real:g},{value.imag:g})"
    return f"{value:g}" if isinstance(value, float) else str(value)
