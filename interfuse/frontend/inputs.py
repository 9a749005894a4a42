"""Checking what a call is given: counts, types, shapes; and the global sizes that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interfuse.errors import (
    InputCountError,
    InputDeviceError,
    InputDtypeError,
    InputRankError,
    InputShapeError,
    UnevenSizeUnknown,
)
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType, convert
from interfuse.ir.nodes import Program, Tensor
from interfuse.ir.steering import steering
from interfuse.ops.evaluate import scalar_value
from interfuse.shard.mesh import Mesh
from interfuse.shard.placed import Traced
from interfuse.shard.placement import Placement, dims_text, local_shape, replicated

GlobalSizes = Sequence[Sequence[int] | None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Values of a program's symbols in one call; `guessed` are those that are local size × mesh size, which must hold on every rank."""

    known: dict[str, int]
    guessed: frozenset[str]


class Inputs:
    """The inputs of one program, and the rules that a call's values must keep."""

    def __init__(self, traced: Traced) -> None:
        self.program: Program = traced.program
        self.mesh = traced.annotations.mesh if traced.annotations else Mesh([0])
        given = traced.annotations.given if traced.annotations else {}
        self.placement: dict[Tensor, Placement] = {t: given.get(t) or replicated(self.mesh, t.ndim) for t in self.program.inputs}
        self.scalars = {position: (name, dtype) for position, name, dtype in self.program.scalars}

        steering_names = steering(self.program)
        self.steers = frozenset(position for position, (name, _) in self.scalars.items() if name in steering_names)

    def written(self) -> dict[int, Tensor]:
        """The inputs that outputs are written into, by their place in a call."""
        targets = {target for _, target in self.program.aliases}
        places = [i for i in range(len(self.program.inputs) + len(self.scalars)) if i not in self.scalars]
        return {i: t for i, t in zip(places, self.program.inputs, strict=True) if t in targets}

    def names(self) -> list[str]:
        """Names in the order of a call."""
        names = [t.name for t in self.program.inputs]
        for position, (name, _) in sorted(self.scalars.items()):
            names.insert(position, name)
        return names

    def tensors(self, values: Sequence[Any]) -> list[Any]:
        """The values of the tensor inputs, in order."""
        return [v for i, v in enumerate(values) if i not in self.scalars]

    def device(self, values: Sequence[Any]) -> torch.device:
        """Where the tensors of a call lie, the CPU for a program without any. Raises InputDeviceError where they lie apart."""
        found = {v.device: None for v in self.tensors(values) if isinstance(v, torch.Tensor)}
        if len(found) > 1:
            raise InputDeviceError(f"the inputs lie on {' and '.join(map(str, found))}; they must lie on one device")
        return next(iter(found), torch.device("cpu"))

    # ---- one rank --------------------------------------------------------------------------------------------------------------------------------

    def check(self, values: Sequence[Any], coordinates: Mapping[str, int] | None, global_sizes: GlobalSizes | None = None) -> Sizes:
        """Checks what this rank can check. `coordinates` say which shards the values are; None: they are global.

        Raises InputCountError, InputDtypeError, InputRankError, InputDeviceError, InputShapeError.
        """
        self._check_count(values)
        known = self._integers(values)
        tensors = self.tensors(values)
        if global_sizes is not None and len(global_sizes) != len(tensors):
            raise InputCountError(
                f"global_sizes has {len(global_sizes)} entries for {len(tensors)} tensors; one per tensor, None where it is not needed"
            )
        guessed: set[str] = set()
        for position, (value, tensor) in enumerate(zip(tensors, self.program.inputs, strict=True)):
            self._check_type(value, tensor)
            asked = global_sizes[position] if global_sizes is not None else None
            for d, size in enumerate(tensor.shape):
                if not isinstance(size, int):
                    (name,) = sizes.symbols(size)
                    known[name], guess = self._global_size(value, tensor, d, asked, coordinates)
                    guessed |= {name} if guess else set()
        for value, tensor in zip(tensors, self.program.inputs, strict=True):
            self._check_shape(value, tensor, known, coordinates)
        numbers = {name: values[position] for position, (name, _) in self.scalars.items()}
        for name, scalar in self.program.computed:
            known[name] = int(convert(scalar_value(scalar, known, numbers), DataType.Int).real)
        return Sizes(known, frozenset(guessed))

    def _check_count(self, values: Sequence[Any]) -> None:
        names = self.names()
        if len(values) != len(names):
            raise InputCountError(f"the program takes {len(names)} inputs ({', '.join(names)}), not {len(values)}")

    def _integers(self, values: Sequence[Any]) -> dict[str, int]:
        """Integer scalars, which are part of a plan's sizes."""
        known: dict[str, int] = {}
        for position, (name, dtype) in self.scalars.items():
            value = values[position]
            if _fits(value, dtype):
                if dtype.is_int and position in self.steers:
                    known[name] = int(value)
                continue
            raise InputDtypeError(f"input {position} ({name}) is a {dtype.short} scalar, a Python number; not {kind_text(value)}")
        return known

    def _check_type(self, value: Any, tensor: Tensor) -> None:
        if not isinstance(value, torch.Tensor):
            raise InputDtypeError(f"{tensor.name} is a tensor, not {kind_text(value)}")
        if value.device.type not in ("cpu", "cuda"):
            raise InputDeviceError(f"{tensor.name} lies on {value.device}; a plan runs on CPUs and on CUDA devices")
        if value.dtype != tensor.dtype.torch:
            raise InputDtypeError(f"{tensor.name} is {tensor.dtype.short} ({tensor.dtype.torch}), but the input is {value.dtype}")
        if value.ndim != tensor.ndim:
            spelled = tensor.dtype.short + dims_text(tensor.shape, self.placement[tensor])
            raise InputRankError(f"{tensor.name} is {spelled}, with {tensor.ndim} dims, but the input has shape {tuple(value.shape)}")

    def _global_size(
        self, value: torch.Tensor, tensor: Tensor, d: int, asked: Sequence[int] | None, coordinates: Mapping[str, int] | None
    ) -> tuple[int, bool]:
        if asked is not None:
            return int(asked[d]), False
        splits = self.placement[tensor].dims[d]
        if coordinates is None or not splits:
            return value.shape[d], False
        total = value.shape[d]
        for split in splits:
            total *= self.mesh.axis_size(split.axis)
        return total, True

    def _check_shape(self, value: torch.Tensor, tensor: Tensor, known: Mapping[str, int], coordinates: Mapping[str, int] | None) -> None:
        placement = self.placement[tensor]
        shape = tuple(sizes.substitute(s, known) for s in tensor.shape)
        expected = shape if coordinates is None else tuple(sizes.substitute(s, coordinates) for s in local_shape(shape, placement))
        if expected == tuple(value.shape):
            return
        spelled = tensor.dtype.short + dims_text(shape, placement)
        if coordinates is None:
            raise InputShapeError(f"{tensor.name} is {spelled}, but the input has the global shape {tuple(value.shape)}")
        where = f" at {', '.join(f'{a}={c}' for a, c in coordinates.items())}" if coordinates else ""
        raise InputShapeError(
            f"{tensor.name} is {spelled}, which makes its local shape {expected}{where}, but the input has shape {tuple(value.shape)}; "
            f"shard_tensor(global_tensor, handle) cuts it right"
        )

    def check_requirements(self, known: Mapping[str, int]) -> None:
        """What the program asks of sizes, now that they are known. Raises the error that each requirement names."""
        for r in self.program.equal:
            a, b = sizes.substitute(r.a, known), sizes.substitute(r.b, known)
            if a != b:
                raise r.error(f"{r.message}: here they are {a} and {b}")
        for tensor in self.program.tensors():
            for size in tensor.shape:
                value = sizes.substitute(size, known)
                if isinstance(value, int) and value < 0:
                    raise InputShapeError(f"{tensor.name} would have the size {value} in {tensor!r}")

    # ---- all ranks -------------------------------------------------------------------------------------------------------------------------------

    def compare(self, facts: Mapping[int, Mapping[str, Any]]) -> None:
        """Raises the same error on every rank where ranks disagree about a global size. `facts` by rank: known, guessed, local shapes."""
        told = {r: f for r, f in sorted(facts.items()) if "known" in f}
        for name in sorted({n for f in told.values() for n in f["known"]}):
            values = {r: f["known"].get(name) for r, f in told.items()}
            if len(set(values.values())) <= 1:
                continue
            owner = self._owner(name)
            if owner is None:
                raise InputShapeError(f"the integer input {name} differs between ranks: {_listed(values)}")
            tensor, d = owner
            local = {r: told[r]["local"][self.program.inputs.index(tensor)][d] for r in values}
            if any(name in told[r]["guessed"] for r in values):
                raise UnevenSizeUnknown(
                    f"{tensor.name}: dim {d} is symbolic and split, and its local sizes are uneven ({_listed(local)}); give its global size: "
                    f"define it as a number, or pass global_sizes="
                )
            raise InputShapeError(f"{tensor.name}: dim {d} is not split, but its local sizes differ between ranks: {_listed(local)}")

    def _owner(self, symbol: str) -> tuple[Tensor, int] | None:
        for tensor in self.program.inputs:
            for d, size in enumerate(tensor.shape):
                if sizes.symbols(size) == {symbol}:
                    return tensor, d
        return None


def _fits(value: Any, dtype: DataType) -> bool:
    """Whether a Python number may be given for a scalar of this type: an integer for any, a float for floating and complex ones."""
    if isinstance(value, complex):
        return dtype.is_complex
    return isinstance(value, bool | int) or (isinstance(value, float) and not dtype.is_int)


def _listed(by_rank: Mapping[int, Any]) -> str:
    return ", ".join(f"{value} on rank {rank}" for rank, value in by_rank.items())


def kind_text(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r} ({type(value).__name__})"
