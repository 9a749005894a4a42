"""The doors of one definition: from inputs to a plan, and from a plan to results.

A call looks its inputs' signature up; what it finds is the function of an emitted host program, bound to this rank. A signature that is not
known takes the long way: inputs are checked, sizes are agreed with the other ranks of the mesh, a plan is compiled or found, its hash is
agreed, its kernels are built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interfuse.errors import (
    InputCountError,
    InputDeviceError,
    InputDtypeError,
    InputRankError,
    InputShapeError,
    MeshError,
    UnevenSizeUnknown,
)
from interfuse.frontend.shards import shard, unshard
from interfuse.ir import sizes
from interfuse.ir.nodes import Program, Tensor
from interfuse.pipeline import KERNEL_SYMBOL, Options, Plan, compile_plan, plan_key
from interfuse.run import build, launch
from interfuse.run.agree import Agreement
from interfuse.run.comm import Comm
from interfuse.run.communicator import Communicator
from interfuse.run.host import Main, Rank, compile_text
from interfuse.run.kernels import Kernel, aten_kernels, warn_no_compiler
from interfuse.run.local_comm import LocalComm, LocalWorld
from interfuse.settings import check_options, settings
from interfuse.shard.mesh import Mesh
from interfuse.shard.placed import Traced
from interfuse.shard.placement import Placement, dims_text, local_shape, replicated
from interfuse.view.report import Report, register

_PLANS: dict[str, Plan] = {}


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan bound to this rank. `signature` is what this rank says of the call when another asks."""

    main: Main
    agreement: Agreement | None
    signature: dict[str, Any]
    wrap: Callable[[list[torch.Tensor]], list[torch.Tensor]] | None = None


class Calls:
    """What one definition's execute, simulate and explain share."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.program: Program = traced.program
        self.mesh: Mesh | None = traced.annotations.mesh if traced.annotations else None
        self.bound: dict[Any, Bound | None] = {}
        self.last_known: dict[str, int] | None = None
        self.text_hash = plan_key(traced, {}, Options())[:12]

    # ---- execute --------------------------------------------------------------------------------------------------------------------------------

    def execute(
        self, inputs: Sequence[Any], device: Any, global_sizes: Any, strict: bool, enable: tuple[str, ...], disable: tuple[str, ...]
    ) -> list[torch.Tensor]:
        try:
            key = (
                tuple([(type(x), x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) else (type(x), x) for x in inputs]),
                device, _frozen(global_sizes), strict, enable, disable,
            )  # fmt: skip
            bound = self.bound.get(key)
        except TypeError:
            key, bound = None, None
        if bound is None:
            return self._first_call(key, inputs, device, global_sizes, strict, enable, disable)
        if bound.agreement is None:
            return bound.main(*inputs)
        bound.agreement.begin(bound.signature)
        return self._guarded(bound.agreement, lambda: bound.main(*inputs))

    @staticmethod
    def _guarded(agreement: Agreement, call: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        try:
            return call()
        except BaseException as error:
            agreement.abort(error)
            raise

    def _first_call(
        self, key: Any, inputs: Sequence[Any], device: Any, global_sizes: Any, strict: bool, enable: tuple[str, ...], disable: tuple[str, ...]
    ) -> list[torch.Tensor]:
        options = make_options(strict, enable, disable)
        if self.mesh is None:
            known, _ = self._check_inputs(inputs, None, device, global_sizes)
            self._check_requirements(known)
            return self._finish_first(key, inputs, self._plan(known, options), None, {})
        communicator = Communicator.instance()
        rank = communicator.rank()
        outside = [r for r in self.mesh.ranks if r >= communicator.size()]
        if outside:
            raise MeshError(f"the mesh {self.mesh!r} names rank {outside[0]}, but the world has {communicator.size()} ranks (0 to {communicator.size() - 1})")
        if rank not in self.mesh.ranks:
            return []
        if self.mesh.size == 1:
            known, _ = self._check_inputs(inputs, {a: 0 for a in self.mesh.names}, device, global_sizes)
            self._check_requirements(known)
            return self._finish_first(key, inputs, self._plan(known, options), None, {})
        agreement = Agreement(communicator, self.mesh.ranks, self.text_hash, settings().timeout_s)
        number = agreement.begin({"program": self.text_hash})
        return self._guarded(agreement, lambda: self._agreed(key, inputs, device, global_sizes, options, agreement, number, rank))

    def _agreed(
        self, key: Any, inputs: Sequence[Any], device: Any, global_sizes: Any, options: Options, agreement: Agreement, number: int, rank: int
    ) -> list[torch.Tensor]:
        """The first call with a signature on a mesh of several ranks: sizes and the plan are agreed before anything runs."""
        assert self.mesh is not None
        known, guessed = self._check_inputs(inputs, self.mesh.coordinates(rank), device, global_sizes)
        shapes = [list(x.shape) for x in inputs if isinstance(x, torch.Tensor)]
        facts = {"known": known, "guessed": sorted(guessed), "local": shapes}
        self._compare_sizes(agreement.agree(number, facts, topic="sizes"), rank)
        self._check_requirements(known)
        plan = self._plan(known, options)
        signature = {"program": self.text_hash, "plan": plan.digest, **facts}
        agreement.agree(number, {**signature, "decisions": plan.emitted.host.splitlines()}, topic="plan")
        return self._finish_first(key, inputs, plan, agreement, signature)

    def _finish_first(self, key: Any, inputs: Sequence[Any], plan: Plan, agreement: Agreement | None, signature: dict[str, Any]) -> list[torch.Tensor]:
        mesh = self.mesh or Mesh([0])
        number = Communicator.instance().rank() if self.mesh is not None else 0
        comm = Comm(Communicator.instance(), mesh.ranks, agreement) if agreement is not None else None
        place = Rank(mesh, number, comm, plan.known)
        main = compile_text(plan.emitted.host, plan.key[:12])(place, load_kernels(plan, place))
        if key is not None:
            self.bound[key] = Bound(main, agreement, signature)
        self.last_known = dict(plan.known)
        return main(*inputs)

    def _compare_sizes(self, facts: Mapping[int, dict[str, Any]], rank: int) -> None:
        """Raises the same error on every rank where ranks disagree about a global size."""
        ranks = sorted(facts)
        for name in sorted({n for f in facts.values() for n in f.get("known", {})}):
            values = {r: facts[r]["known"].get(name) for r in ranks if "known" in facts[r]}
            if len(set(values.values())) <= 1:
                continue
            tensor, dim = self._owner(name)
            local = {r: facts[r]["local"][self._tensor_position(tensor)][dim] for r in values}
            listed = ", ".join(f"{size} on rank {r}" for r, size in local.items())
            if any(name in facts[r].get("guessed", ()) for r in values):
                raise UnevenSizeUnknown(
                    f"{tensor.name}: dim {dim} is symbolic and split, and its local sizes are uneven ({listed}); "
                    f"give its global size: define it as a number, or pass global_sizes="
                )
            raise InputShapeError(f"{tensor.name}: dim {dim} is not split, but its local sizes differ between ranks: {listed}")

    def _owner(self, symbol: str) -> tuple[Tensor, int]:
        for tensor in self.program.inputs:
            for d, size in enumerate(tensor.shape):
                if sizes.symbols(size) == {symbol}:
                    return tensor, d
        raise LookupError(symbol)

    def _tensor_position(self, tensor: Tensor) -> int:
        return self.program.inputs.index(tensor)

    # ---- checking inputs --------------------------------------------------------------------------------------------------------------------------

    def _check_inputs(
        self, inputs: Sequence[Any], coordinates: Mapping[str, int] | None, device: Any, global_sizes: Any
    ) -> tuple[dict[str, int], set[str]]:
        """Symbols' values, and which of them were guessed from this rank's local size. `coordinates` None: inputs are global."""
        tensors, known = self._sorted_inputs(inputs)
        if device is not None and torch.device(device if not isinstance(device, int) else "cpu").type != "cpu":
            raise InputDeviceError(f"device={device!r}: this plan runs on the CPU")
        guessed: set[str] = set()
        for position, (value, tensor) in enumerate(zip(tensors, self.program.inputs, strict=True)):
            asked = global_sizes[position] if global_sizes is not None and position < len(global_sizes) else None
            self._check_tensor(value, tensor)
            for d, size in enumerate(tensor.shape):
                if isinstance(size, int):
                    continue
                (name,) = sizes.symbols(size)
                known[name], guess = self._global_size(value, tensor, d, asked, coordinates)
                if guess:
                    guessed.add(name)
        for value, tensor in zip(tensors, self.program.inputs, strict=True):
            self._check_local_shape(value, tensor, known, coordinates)
        return known, guessed

    def _sorted_inputs(self, inputs: Sequence[Any]) -> tuple[list[torch.Tensor], dict[str, int]]:
        program = self.program
        expected = len(program.inputs) + len(program.scalars)
        if len(inputs) != expected:
            raise InputCountError(f"the program takes {expected} inputs ({', '.join(self._names())}), not {len(inputs)}")
        places = {position: (name, dtype) for position, name, dtype in program.scalars}
        tensors, known = [], {}
        names = self._names()
        for i, value in enumerate(inputs):
            if i in places:
                name, dtype = places[i]
                if isinstance(value, torch.Tensor) and value.ndim == 0:
                    value = value.item()
                if isinstance(value, torch.Tensor) or not isinstance(value, (bool, int, float)):
                    raise InputDtypeError(f"input {i} ({name}) is a {dtype.short} scalar, not {_kind(value)}")
                if dtype.is_int and not isinstance(value, int):
                    raise InputDtypeError(f"input {i} ({name}) is a {dtype.short} scalar, not {value!r}")
                if dtype.is_int:
                    known[name] = int(value)
            elif not isinstance(value, torch.Tensor):
                raise InputDtypeError(f"input {i} ({names[i]}) is a tensor, not {_kind(value)}")
            else:
                tensors.append(value)
        return tensors, known

    def _names(self) -> list[str]:
        names = [t.name for t in self.program.inputs]
        for position, name, _ in self.program.scalars:
            names.insert(position, name)
        return names

    def _check_tensor(self, value: torch.Tensor, tensor: Tensor) -> None:
        if value.device.type != "cpu":
            raise InputDeviceError(f"{tensor.name} lies on {value.device}; this plan runs on the CPU")
        if value.dtype != tensor.dtype.torch:
            raise InputDtypeError(f"{tensor.name} is {tensor.dtype.short} ({tensor.dtype.torch}), but the input is {value.dtype}")
        if value.ndim != tensor.ndim:
            raise InputRankError(f"{tensor.name} has {tensor.ndim} dims {_spelled(tensor, self._placement(tensor))}, but the input has shape {tuple(value.shape)}")

    def _placement(self, tensor: Tensor) -> Placement:
        given = self.traced.annotations.given if self.traced.annotations else {}
        return given.get(tensor) or replicated(self.mesh or Mesh([0]), tensor.ndim)

    def _global_size(self, value: torch.Tensor, tensor: Tensor, d: int, asked: Any, coordinates: Mapping[str, int] | None) -> tuple[int, bool]:
        if asked is not None:
            return int(asked[d]), False
        splits = self._placement(tensor).dims[d]
        if coordinates is None or not splits:
            return value.shape[d], False
        total = value.shape[d]
        for split in splits:
            total *= self._placement(tensor).mesh.axis_size(split.axis)
        return total, True

    def _check_local_shape(self, value: torch.Tensor, tensor: Tensor, known: Mapping[str, int], coordinates: Mapping[str, int] | None) -> None:
        placement = self._placement(tensor)
        shape = tuple(sizes.substitute(s, known) for s in tensor.shape)
        expected = shape if coordinates is None else tuple(sizes.substitute(s, coordinates) for s in local_shape(shape, placement))
        if expected != tuple(value.shape):
            where = "" if coordinates is None else " at " + ", ".join(f"{a}={c}" for a, c in coordinates.items())
            kind = "global" if coordinates is None else "local"
            raise InputShapeError(
                f"{tensor.name} is {tensor.dtype.short}{dims_text(shape, placement)}, which makes its {kind} shape {expected}{where}, "
                f"but the input has shape {tuple(value.shape)}" + ("; pass shard_tensor(global tensor, its handle)" if coordinates is not None else "")
            )

    def _check_requirements(self, known: Mapping[str, int]) -> None:
        for r in self.program.equal:
            a, b = sizes.substitute(r.a, known), sizes.substitute(r.b, known)
            if a != b:
                raise r.error(f"{r.message}: they are {a} and {b}")
        for tensor in self.program.tensors():
            for size in tensor.shape:
                value = sizes.substitute(size, known)
                if isinstance(value, int) and value < 0:
                    raise InputShapeError(f"{tensor.name} would have the size {value} in {tensor!r}")

    def _plan(self, known: Mapping[str, int], options: Options) -> Plan:
        key = plan_key(self.traced, known, options)
        if key not in _PLANS:
            _PLANS[key] = compile_plan(self.traced, known, options)
            register(_PLANS[key])
        return _PLANS[key]

    # ---- simulate -----------------------------------------------------------------------------------------------------------------------------------

    def simulate(
        self, inputs: Sequence[Any], strict: bool, enable: tuple[str, ...], disable: tuple[str, ...], host_text: str | None = None
    ) -> list[torch.Tensor]:
        """`host_text` stands in for the emitted one, to try an edited program."""
        known, _ = self._check_inputs(inputs, None, None, None)
        self._check_requirements(known)
        plan = self._plan(known, make_options(strict, enable, disable))
        self.last_known = dict(known)
        mesh = self.mesh or Mesh([0])
        bind = compile_text(host_text or plan.emitted.host, plan.key[:12])
        kernels = load_kernels(plan, None) if plan.options.codegen else None
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        placed = dict(zip(self.program.inputs, tensors, strict=False))

        def run(comm: LocalComm) -> list[torch.Tensor]:
            place = Rank(mesh, comm.rank, comm, plan.known)
            local = {t: shard(x, self._placement(t), place.coordinates) for t, x in placed.items()}
            queue = iter(local.values())
            args = [next(queue) if isinstance(x, torch.Tensor) and x.ndim + 1 and i not in self._scalar_places() else x for i, x in enumerate(inputs)]
            return bind(place, kernels if kernels is not None else load_kernels(plan, place))(*args)

        results = LocalWorld(mesh.ranks).run(run)
        outs = []
        for i, t in enumerate(plan.local.program.outputs):
            shape = tuple(sizes.evaluate(s, known) for s in self.program.outputs[i].shape)
            shards = {rank: results[k][i] for k, rank in enumerate(mesh.ranks)}
            outs.append(unshard(shards, plan.local.placement[t], shape, self.program.outputs[i].name))
        return outs

    def _scalar_places(self) -> set[int]:
        return {position for position, _, _ in self.program.scalars}

    # ---- explain ------------------------------------------------------------------------------------------------------------------------------------

    def explain(
        self, inputs: Sequence[Any] | None, global_sizes: Any, rank: int | None, stop: str | None, strict: bool, enable: tuple[str, ...], disable: tuple[str, ...]
    ) -> Report:
        options = make_options(strict, enable, disable)
        known = self._known_for(inputs, global_sizes, rank)
        if stop is not None:
            return Report(compile_plan(self.traced, known, options, stop), self._rank_for(rank), stopped=True)
        return Report(self._plan(known, options), self._rank_for(rank))

    def _rank_for(self, rank: int | None) -> int:
        if self.mesh is None:
            return 0
        if rank is None:
            here = Communicator.instance().rank()
            return here if here in self.mesh.ranks else self.mesh.ranks[0]
        if rank not in self.mesh.ranks:
            raise MeshError(f"rank {rank} is not in the mesh {self.mesh!r}")
        return rank

    def _known_for(self, inputs: Sequence[Any] | None, global_sizes: Any, rank: int | None) -> dict[str, int]:
        if inputs is None:
            if global_sizes is None:
                return dict(self.last_known or {})
            known = {}
            for tensor, shape in zip(self.program.inputs, global_sizes, strict=True):
                known.update({next(iter(sizes.symbols(s))): int(n) for s, n in zip(tensor.shape, shape or (), strict=bool(shape)) if not isinstance(s, int)})
            return known
        try:
            known, _ = self._check_inputs(inputs, None, None, global_sizes)
            self._check_requirements(known)
            return known
        except (InputShapeError, *_REQUIREMENT_ERRORS):
            if self.mesh is None:
                raise
            known, _ = self._check_inputs(inputs, self.mesh.coordinates(self._rank_for(rank)), None, global_sizes)
            self._check_requirements(known)
            return known


_REQUIREMENT_ERRORS = (RuntimeError,)


def make_options(strict: bool, enable: tuple[str, ...], disable: tuple[str, ...]) -> Options:
    """Options of one call together with those of the environment. Raises OptionError."""
    check_options(enable, disable)
    enabled, disabled = settings().enable | frozenset(enable), settings().disable | frozenset(disable)
    codegen = "codegen" not in disabled
    if codegen and build.find_compiler() is None:
        warn_no_compiler()
        codegen = False
    return Options(tuple(sorted(enabled)), tuple(sorted(disabled)), strict, codegen)


def load_kernels(plan: Plan, place: Rank | None) -> Mapping[str, Kernel]:
    """The plan's kernels, compiled; or run through ATen, for which sizes at this rank's place are needed."""
    if not plan.options.codegen:
        assert place is not None
        return aten_kernels(list(plan.kernels_by_segment().values()), {**plan.known, **place.coordinates})
    paths = build.build(plan.emitted.sources)
    kernels = plan.emitted.tiled.kernels
    return {name: launch.load(path, KERNEL_SYMBOL, signature_of(kernels[name])) for name, path in paths.items()}


def signature_of(kernel: Any) -> str:
    """One letter per argument: pointers, scalars (d a double, i an integer), sizes."""
    letters = "p" * len(kernel.buffers)
    letters += "".join("d" if s.dtype.is_float else "i" for s in kernel.scalar_args)
    return letters + "i" * len(kernel.size_args)


def _kind(value: Any) -> str:
    return f"a tensor of {value.ndim} dims" if isinstance(value, torch.Tensor) else f"{value!r} ({type(value).__name__})"


def _spelled(tensor: Tensor, placement: Placement) -> str:
    return tensor.dtype.short + dims_text(tensor.shape, placement)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


