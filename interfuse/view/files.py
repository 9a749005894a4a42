"""A user's file as something to try or to explain.

The file defines one of
    program(fd)  or  program(fd, ranks)       which adds inputs, ops, outputs and placements (repr of a definition is such a file)
    a subclass of FusionDefinition            made without arguments
    fd                                        a finished FusionDefinition
and optionally
    inputs()                                  *global* inputs; else random ones, symbolic sizes 64
    reference(*inputs)                        a tensor or a sequence of them; else the program itself, op by op through ATen
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from interfuse.errors import InterfuseError
from interfuse.frontend.definition import FusionDefinition
from interfuse.ir import sizes
from interfuse.ir.nodes import Program, Tensor
from interfuse.ops.evaluate import evaluate
from interfuse.view.trial import Job

NOMINAL = 64


class NoProgram(InterfuseError, ValueError):
    """A file cannot be read, or defines no program."""


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """What a file defines."""

    path: Path
    names: dict[str, Any]

    def definition(self, ranks: int | None) -> FusionDefinition:
        """The program; `ranks` goes to a `program(fd, ranks)`, 2 where nobody said."""
        program, fd = self.names.get("program"), self.names.get("fd")
        if callable(program):
            wants_ranks = len(inspect.signature(program).parameters) > 1
            with FusionDefinition() as made:
                program(made, ranks or 2) if wants_ranks else program(made)
            return made
        if isinstance(fd, FusionDefinition):
            return fd
        kinds = [v for v in self.names.values() if isinstance(v, type) and issubclass(v, FusionDefinition) and v.__module__ == _MODULE]
        if len(kinds) == 1:
            return kinds[0]()
        if kinds:
            names = ", ".join(k.__name__ for k in kinds)
            raise NoProgram(f"{self.path}: several programs ({names}); add `def program(fd)` or `fd = …` to say which one is meant")
        raise NoProgram(f"{self.path}: no program; define `program(fd)`, a subclass of FusionDefinition, or `fd`")

    def inputs(self, fd: FusionDefinition) -> list[Any]:
        """*Global* inputs, the same on every rank."""
        torch.manual_seed(0)
        given = self._function("inputs")
        return list(given()) if given is not None else random_inputs(fd.source.program)

    def job(self, fd: FusionDefinition) -> Job:
        inputs, own = self.inputs(fd), self._function("reference")
        if own is not None:
            return Job(str(self.path), fd, inputs, lambda: _as_list(own(*inputs)), "reference()")
        return Job(str(self.path), fd, inputs, lambda: evaluate_on_one_rank(fd, inputs), "the same program op by op on one rank")

    def _function(self, name: str) -> Callable[..., Any] | None:
        found = self.names.get(name)
        if found is not None and not callable(found):
            raise NoProgram(f"{self.path}: {name} is {type(found).__name__}, not a function")
        return found


_MODULE = "interfuse_program"


def read_program(path: Path) -> ProgramFile:
    """Runs a file under a name of its own, so `if __name__ == "__main__"` in it stays quiet. Raises NoProgram; errors of the file pass through."""
    if not path.is_file():
        raise NoProgram(f"{path}: there is no such file")
    return ProgramFile(path, runpy.run_path(str(path), run_name=_MODULE))


def needed_ranks(fd: FusionDefinition) -> int:
    """The smallest world that has all ranks of the program's mesh."""
    annotations = fd.source.annotations
    return max(annotations.mesh.ranks) + 1 if annotations else 1


def random_inputs(program: Program) -> list[Any]:
    """Inputs of the defined sizes; a symbolic size is what other inputs make of it, else 64. Integers are 0 to 7."""
    known = _sizes_of(program)
    inputs: list[Any] = [_random(t, known) for t in program.inputs]
    for position, name, dtype in program.scalars:
        inputs.insert(position, known[name] if dtype.is_int else 1.0 if dtype.is_float else True)
    return inputs


def evaluate_on_one_rank(fd: FusionDefinition, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The Traced program through ATen, op by op, on *global* inputs."""
    program = fd.source.program
    places = {position: name for position, name, _ in program.scalars}
    scalars = {places[i]: x for i, x in enumerate(inputs) if i in places}
    tensors = dict(zip(program.inputs, (x for i, x in enumerate(inputs) if i not in places)))
    known = {name: int(x) for name, x in scalars.items()}
    for t, x in tensors.items():
        known.update({next(iter(sizes.symbols(s))): n for s, n in zip(t.shape, x.shape) if not isinstance(s, int)})
    return evaluate(program, tensors, known, scalars)


def _sizes_of(program: Program) -> dict[str, int]:
    known: dict[str, int] = {}
    for rule in program.equal:
        a, b = sizes.substitute(rule.a, known), sizes.substitute(rule.b, known)
        for fixed, free in ((a, b), (b, a)):
            if isinstance(fixed, int) and not isinstance(free, int) and str(free) in sizes.symbols(free):
                known[str(free)] = fixed
    names = {n for t in program.tensors() for s in t.shape if not isinstance(s, int) for n in sizes.symbols(s)}
    names |= {name for _, name, dtype in program.scalars if dtype.is_int}
    return {**dict.fromkeys(sorted(names), NOMINAL), **known}


def _random(tensor: Tensor, known: dict[str, int]) -> torch.Tensor:
    shape = [sizes.evaluate(s, known) for s in tensor.shape]
    if tensor.dtype.is_float:
        return torch.randn(shape).to(tensor.dtype.torch)
    return torch.randint(0, 8 if tensor.dtype.is_int else 2, shape).to(tensor.dtype.torch)


def _as_list(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)
