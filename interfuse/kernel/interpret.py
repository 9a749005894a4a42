"""Runs a tile program on torch tensors: what the Tiled form means, independent of every emitter. Slow; for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

import torch

from interfuse.ir.nodes import ReduceOp
from interfuse.ir.sizes import Atom, Size, Sym
from interfuse.kernel.nodes import (
    Argument,
    Array,
    Branch,
    Compute,
    Convert,
    Element,
    Fold,
    IndexValue,
    Let,
    LetIndex,
    Load,
    Loop,
    Mask,
    Merge,
    Number,
    Ref,
    Select,
    Statement,
    Store,
    TileKernel,
    Value,
    Write,
)

Index: TypeAlias = int | torch.Tensor


def interpret(kernel: TileKernel, tensors: Sequence[torch.Tensor], scalars: Sequence[bool | int | float], size_values: Sequence[int]) -> None:
    """Fills the output tensors among `tensors`, which are in the order of `kernel.buffers`, all dense."""
    machine = _Machine()
    for buffer, tensor in zip(kernel.buffers, tensors, strict=True):
        assert tensor.is_contiguous() and tensor.dtype == buffer.dtype.torch
        machine.arrays[buffer.name] = tensor.view(-1)
    machine.index.update(zip(kernel.size_names(), size_values, strict=True))
    for name, scalar, given in zip(kernel.scalar_names(), kernel.scalar_args, scalars, strict=True):
        machine.values[name] = torch.tensor(given, dtype=torch.float64 if scalar.dtype.is_float else torch.int64)
    machine.run(kernel.body)


class _Machine:
    """Names and what they hold. A lanes loop runs once, its variable a vector of all its indices."""

    def __init__(self) -> None:
        self.arrays: dict[str, torch.Tensor] = {}
        self.index: dict[str, Index] = {}
        self.values: dict[str, torch.Tensor] = {}

    def run(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self._step(statement)

    def _step(self, statement: Statement) -> None:
        match statement:
            case Let():
                self.values[statement.name] = self.value(statement.value)
            case LetIndex():
                self.index[statement.name] = self.at(statement.index)
            case Array():
                self.arrays[statement.name] = torch.empty(int(self.at(statement.count)), dtype=statement.dtype.torch)
            case Write():
                array = self.arrays[statement.array]
                array[self.at(statement.index)] = self.value(statement.value).to(array.dtype)
            case Store():
                buffer = self.arrays[statement.buffer]
                buffer[self.at(statement.index)] = self.value(statement.value).to(buffer.dtype)
            case Fold():
                self._fold(statement)
            case Branch():
                cut = int(self.at(statement.few)) < statement.at_most and int(self.at(statement.work)) >= statement.at_least
                self.run(statement.then if cut else statement.other)
            case Loop():
                self._loop(statement)
            case _:
                assert_never(statement)

    def _fold(self, fold: Fold) -> None:
        lanes = self.arrays[fold.array][: fold.count]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = _merge(fold.op, lanes[:half], lanes[half:])
        self.values[fold.name] = lanes[0]

    def _loop(self, loop: Loop) -> None:
        lo, hi = int(self.at(loop.lo)), int(self.at(loop.hi))
        if loop.kind == "lanes":
            if hi > lo:
                self.index[loop.var] = torch.arange(lo, hi, loop.step)
                self.run(loop.body)
            return
        for i in range(lo, hi, loop.step):
            self.index[loop.var] = i
            self.run(loop.body)

    def at(self, size: Size) -> Index:
        if isinstance(size, int):
            return size
        total: Index = 0
        for monomial, factor in size.terms:
            term: Index = factor
            for atom in monomial:
                term = term * self._atom(atom)
            total = total + term
        return total

    def _atom(self, atom: Atom) -> Index:
        if isinstance(atom, Sym):
            return self.index[atom.name]
        a, b = (self.at(x) for x in atom.args)
        match atom.function:
            case "floordiv":
                return a // b
            case "mod":
                return a % b
            case "min":
                return min(a, b)
            case "max":
                return max(a, b)
        raise ValueError(atom.function)

    def holds(self, mask: Mask) -> torch.Tensor:
        result = torch.tensor(True)
        for within in mask:
            index = torch.as_tensor(self.at(within.index))
            result = result & (index >= 0) & (index < self.at(within.bound))
        return result

    def value(self, value: Value) -> torch.Tensor:
        match value:
            case Load():
                return self._load(value)
            case Number():
                return torch.tensor(value.value, dtype=value.dtype.compute.torch)
            case Argument():
                return self.values[value.name].to(value.dtype.compute.torch)
            case IndexValue():
                return torch.as_tensor(self.at(value.index))
            case Ref():
                return self.values[value.name]
            case Element():
                return self.arrays[value.array][self.at(value.index)].clone()
            case Compute():
                args = [self.value(a) for a in value.args]
                return value.op.torch(*args).to(value.dtype.compute.torch)
            case Convert():
                return self.value(value.arg).to(value.dtype.torch).to(value.dtype.compute.torch)
            case Select():
                return torch.where(self.holds(value.mask), self.value(value.then), self.value(value.other))
            case Merge():
                return _merge(value.op, self.value(value.accumulator), self.value(value.value))
            case _:
                assert_never(value)

    def _load(self, load: Load) -> torch.Tensor:
        buffer, compute = self.arrays[load.buffer], load.dtype.compute.torch
        index = torch.as_tensor(self.at(load.index))
        if not load.mask:
            return buffer[index].to(compute)
        holds = self.holds(load.mask)
        if not bool(holds.any()):
            return torch.zeros(torch.broadcast_shapes(index.shape, holds.shape), dtype=compute)
        read = buffer[torch.where(holds, index, index[holds.expand(index.shape)].reshape(-1)[0] if index.ndim else index)]
        return torch.where(holds, read.to(compute), torch.zeros((), dtype=compute))


def _merge(op: ReduceOp, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = torch.broadcast_tensors(a, b)
    return op.torch(torch.stack([a, b]), (0,)).to(a.dtype)
