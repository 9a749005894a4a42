"""Comparing results with their reference, as far apart as their types and the sums behind them allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from interfuse.compat.fusion import Fusion
from interfuse.errors import ValidationError
from interfuse.ir import sizes
from interfuse.ir.nodes import Contract, Program, Reduce, Tensor, operands
from interfuse.ops.evaluate import evaluate

_ROUNDINGS, _ROUNDINGS_STORED = 16, 4


def get_val_tolerances(fusion: Fusion, args: Sequence[Any]) -> list[tuple[float, float]]:
    """(absolute, relative) per output: some roundings of its types, growing with the square root of the most terms summed on the way to it."""
    program = fusion.source.program
    known = fusion._calls.inputs.check(list(args), None).known
    terms = _terms(program, known)
    return [_tolerance(t, terms[t], program) for t in program.outputs]


def _terms(program: Program, known: Any) -> dict[Tensor, int]:
    terms: dict[Tensor, int] = dict.fromkeys(program.inputs, 1)
    for node in program.nodes:
        count = max((terms[t] for t in operands(node)), default=1)
        if isinstance(node, Reduce):
            count *= math.prod(sizes.evaluate(node.arg.shape[d], known) for d in node.dims)
        elif isinstance(node, Contract):
            count *= sizes.evaluate(node.a.shape[-1], known)
        terms[node.out] = max(count, 1)
    return terms


def _tolerance(tensor: Tensor, terms: int, program: Program) -> tuple[float, float]:
    """Sums are kept in the compute type; what is rounded to a narrower one on the way errs by that type's precision, each term for itself."""
    if not (tensor.dtype.is_float or tensor.dtype.is_complex):
        return 0.0, 0.0
    kinds = {t.dtype.component for t in program.tensors() if t.dtype.is_float or t.dtype.is_complex}
    narrow = max((torch.finfo(k.torch).eps for k in kinds if k.is_low_precision), default=0.0)
    summed = _ROUNDINGS * max(torch.finfo(k.compute.torch).eps for k in kinds) * math.sqrt(terms)
    stored = _ROUNDINGS_STORED * narrow
    return summed + stored * math.sqrt(terms), summed + stored


def reference(fusion: Fusion, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The program's outputs, computed op by op with PyTorch. They share no memory with inputs that a call writes to."""
    calls = fusion._calls
    written = {target for _, target in calls.inputs.program.aliases}
    known = calls.inputs.check(list(inputs), None).known
    tensors = dict(zip(calls.inputs.program.inputs, calls.inputs.tensors(inputs), strict=True))
    tensors |= {t: tensors[t].clone() for t in written}
    scalars = {name: inputs[position] for position, (name, _) in calls.inputs.scalars.items()}
    return evaluate(calls.inputs.program, tensors, known, scalars)


def compare(outputs: Sequence[torch.Tensor], references: Sequence[torch.Tensor], tolerances: Sequence[tuple[float, float]]) -> None:
    """Raises ValidationError, naming the first output that is too far off."""
    if len(outputs) != len(references):
        raise ValidationError(f"{len(outputs)} outputs, but {len(references)} references")
    for i, (out, expected, (atol, rtol)) in enumerate(zip(outputs, references, tolerances, strict=True)):
        if out.shape != expected.shape:
            raise ValidationError(f"output {i} has shape {tuple(out.shape)}, its reference {tuple(expected.shape)}")
        try:
            torch.testing.assert_close(out, expected.to(out.device), atol=atol, rtol=rtol, equal_nan=True, check_dtype=False)
        except AssertionError as error:
            raise ValidationError(f"output {i}: {error}") from None


def validate_with_auto_inferred_outputs(fusion: Fusion, fusion_outputs: Sequence[torch.Tensor], args: Sequence[Any]) -> None:
    """Compares outputs with what PyTorch computes from the same inputs. Raises ValidationError."""
    compare(fusion_outputs, reference(fusion, args), get_val_tolerances(fusion, args))
