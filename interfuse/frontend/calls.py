"""The doors of one definition: from inputs to a plan, and from a plan to results.

A call looks its inputs' signature up; what it finds is the function of an emitted host program, bound to this rank. A signature that is not
known takes the long way: inputs are checked, sizes are agreed with the other ranks of the mesh, a plan is compiled or found, its hash is
agreed, its kernels are built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interfuse.errors import InputDeviceError, InputShapeError, InterfuseError, MeshError
from interfuse.frontend.dtensors import is_dtensor, unwrap, wrap
from interfuse.frontend.inputs import GlobalSizes, Inputs, Sizes
from interfuse.frontend.shards import shard, unshard
from interfuse.ir import sizes
from interfuse.kernel.target import target
from interfuse.pipeline import Options, Plan, compile_plan, plan_key
from interfuse.run import build, triton_launch
from interfuse.run.agree import Agreement
from interfuse.run.comm import Comm
from interfuse.run.communicator import Communicator
from interfuse.run.device import on_device, target_name
from interfuse.run.host import Main, Rank, compile_text
from interfuse.run.kernels import Kernel, aten_kernels, load_kernels, warn_no_compiler, warn_no_triton
from interfuse.run.local_comm import LocalComm, LocalWorld
from interfuse.run.random_state import SharedKey, draw
from interfuse.settings import check_options, settings
from interfuse.shard.mesh import Mesh
from interfuse.shard.placed import Traced
from interfuse.view.dump import dump
from interfuse.view.logs import log_lookup, log_plan
from interfuse.view.report import MOST_PLANS, Report, register

_PLANS: dict[str, Plan] = {}
_MOST_SIGNATURES = 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of one call."""

    device: Any = None
    global_sizes: GlobalSizes | None = None
    strict: bool = False
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    target: str | None = None

    def options(self, device: torch.device | None = None) -> Options:
        """Together with those of the environment, for the inputs' device where no target is asked for. Raises OptionError, InputDeviceError."""
        check_options(self.enable, self.disable)
        enabled, disabled = settings().enable | frozenset(self.enable), settings().disable | frozenset(self.disable)
        chosen = target(self.target or target_name(device or torch.device("cpu")) or "cpu")
        codegen = "codegen" not in disabled
        if codegen and chosen.language == "cpp" and build.find_compiler() is None:
            warn_no_compiler()
            codegen = False
        if codegen and chosen.language == "triton" and self.target is None and not triton_launch.is_available():
            warn_no_triton()
            codegen = False
        return Options(tuple(sorted(enabled)), tuple(sorted(disabled)), self.strict, codegen, chosen.name)


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan bound to this rank. `signature` is what this rank says of the call when another asks; None: there are no others."""

    main: Main
    agreement: Agreement | None
    signature: dict[str, Any]


class Calls:
    """What one definition's execute, simulate and explain share."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.mesh: Mesh | None = traced.annotations.mesh if traced.annotations else None
        self.inputs = Inputs(traced)
        self.steers = self.inputs.steers
        self.bound: dict[Any, Bound] = {}
        self.last_known: dict[str, int] | None = None
        self.name = plan_key(traced, {}, Options())[:12]

    # ---- execute --------------------------------------------------------------------------------------------------------------------------------

    def execute(self, values: Sequence[Any], asked: Asked | None) -> list[torch.Tensor]:
        """`asked` None: a call without options, the fast way."""
        key: tuple[Any, ...] = tuple(
            [
                (type(v), v.shape, v.dtype, v.device, v.requires_grad) if isinstance(v, torch.Tensor) else v if i in self.steers else type(v)
                for i, v in enumerate(values)
            ]
        )
        if asked is not None:
            key = (*key, asked.device, _frozen(asked.global_sizes), asked.strict, asked.enable, asked.disable)
        bound = self.bound.get(key)
        if bound is None:
            return self._first_call(key, values, asked or Asked())
        if bound.agreement is None:
            return bound.main(*values)
        bound.agreement.begin(bound.signature)
        try:
            return bound.main(*values)
        except BaseException as error:
            bound.agreement.abort(error)
            raise

    def _first_call(self, key: Any, values: Sequence[Any], asked: Asked) -> list[torch.Tensor]:
        coordinates = None
        if self.mesh is not None:
            coordinates = self.mesh.coordinates(self._rank_in_world())
            if coordinates is None:
                return []
        if any(is_dtensor(v) for v in values):
            return self._with_dtensors(values, asked)
        if self.mesh is not None and coordinates is not None and self.mesh.size > 1:
            agreement, number = self._begin()
            try:
                return self._agreed(key, values, asked, agreement, number, coordinates)(*values)
            except BaseException as error:
                agreement.abort(error)
                raise
        device = self.inputs.device(values)
        _check_device(asked.device, device)
        return self._bind(key, values, self._plan(self._sizes(values, coordinates, asked), asked.options(device)), None, {})(*values)

    def _begin(self) -> tuple[Agreement, int]:
        """A call with an unknown signature on a mesh of several ranks: from here on the others are told whatever goes wrong."""
        assert self.mesh is not None
        agreement = Agreement(Communicator.instance(), self.mesh.ranks, self.name, settings().timeout_s)
        return agreement, agreement.begin({"program": self.name})

    def _agreed(self, key: Any, values: Sequence[Any], asked: Asked, agreement: Agreement, number: int, coordinates: Mapping[str, int]) -> Main:
        """The first call with a signature on a mesh of several ranks: sizes and the plan are agreed before anything runs."""
        found = self.inputs.check(values, coordinates, asked.global_sizes)
        device = self.inputs.device(values)
        _check_device(asked.device, device)
        if device.type != "cpu":
            raise InputDeviceError(f"the inputs lie on {device}; a program on {len(agreement.members)} ranks runs on the CPU")
        shapes = [list(v.shape) for v in self.inputs.tensors(values)]
        facts = {"known": found.known, "guessed": sorted(found.guessed), "local": shapes}
        self.inputs.compare(agreement.agree(number, facts, topic="sizes"))
        self.inputs.check_requirements(found.known)
        plan = self._plan(found, asked.options())
        decisions = plan.emitted.host.splitlines()[1:]  # the first line names the plan
        signature = {"program": self.name, "plan": plan.digest, "decisions": decisions, **facts}
        agreement.agree(number, signature, topic="plan")
        return self._bind(key, values, plan, agreement, signature)

    def _bind(self, key: Any, values: Sequence[Any], plan: Plan, agreement: Agreement | None, signature: dict[str, Any]) -> Main:
        mesh = self.mesh or Mesh([0])
        rank = Communicator.instance().rank() if self.mesh is not None else 0
        comm = Comm(Communicator.instance(), mesh.ranks, agreement) if agreement is not None else None
        place = Rank(mesh, rank, comm, plan.known, SharedKey(agreement, mesh.ranks[0]) if agreement is not None else draw)
        if (folder := settings().dump_dir) is not None:
            dump(plan, rank, folder)
        device = self.inputs.device(values)
        main = compile_text(plan.emitted.host, plan.key[:12])(place, self._kernels(plan, place, device))
        main = on_device(main, device)
        if any(isinstance(v, torch.Tensor) and v.requires_grad for v in values):
            main = torch.no_grad()(main)  # ATen refuses out= for tensors that require gradients
        if len(self.bound) >= _MOST_SIGNATURES:
            del self.bound[next(iter(self.bound))]
        self.bound[key] = Bound(main, agreement, signature)
        self.last_known = dict(plan.known)
        return main

    def _rank_in_world(self) -> int:
        assert self.mesh is not None
        communicator = Communicator.instance()
        outside = [r for r in self.mesh.ranks if r >= communicator.size()]
        if outside:
            world = f"0 to {communicator.size() - 1}" if communicator.size() > 1 else "only 0"
            raise MeshError(
                f"{self.mesh!r} names rank {outside[0]}, but the world has {communicator.size()} ranks ({world}); start them with torchrun"
            )
        return communicator.rank()

    def _sizes(self, values: Sequence[Any], coordinates: Mapping[str, int] | None, asked: Asked) -> Sizes:
        found = self.inputs.check(values, coordinates, asked.global_sizes)
        self.inputs.check_requirements(found.known)
        return found

    def _plan(self, found: Sizes, options: Options) -> Plan:
        key = plan_key(self.traced, found.known, options)
        hit = key in _PLANS
        if not hit:
            if len(_PLANS) >= MOST_PLANS:
                del _PLANS[next(iter(_PLANS))]
            _PLANS[key] = compile_plan(self.traced, found.known, options)
            register(_PLANS[key])
            log_plan(_PLANS[key], self._rank_for(None))
        log_lookup(key, hit)
        return _PLANS[key]

    @staticmethod
    def _kernels(plan: Plan, place: Rank, device: torch.device | None = None) -> Mapping[str, Kernel]:
        """Compiled; or run through ATen, for which sizes at this rank's place are needed."""
        made = load_kernels(plan.emitted.sources, plan.emitted.tiled.kernels, device) if plan.emitted.sources else {}
        return {**made, **aten_kernels(list(plan.aten_segments()), {**plan.known, **place.coordinates})}

    def _with_dtensors(self, values: Sequence[Any], asked: Asked) -> list[torch.Tensor]:
        try:
            local, shapes = unwrap(values, self.inputs)
        except InterfuseError as error:
            if self.mesh is not None and self.mesh.size > 1:
                self._begin()[0].abort(error)
            raise
        outs = self.execute(local, Asked(asked.device, tuple(shapes), asked.strict, asked.enable, asked.disable))
        if not outs:
            return outs
        assert self.last_known is not None
        plan = self._plan(self.inputs.check(local, self._here(), shapes), asked.options())
        global_shapes = [tuple(sizes.evaluate(s, plan.known) for s in t.shape) for t in self.traced.program.outputs]
        placements = [plan.local.placement[t] for t in plan.local.program.outputs]
        return wrap(outs, placements, global_shapes, next(v for v in values if is_dtensor(v)).device_mesh)

    def _here(self) -> Mapping[str, int] | None:
        return self.mesh.coordinates(Communicator.instance().rank()) if self.mesh else None

    # ---- simulate --------------------------------------------------------------------------------------------------------------------------------

    def simulate(self, values: Sequence[Any], asked: Asked, host_text: str | None = None) -> list[torch.Tensor]:
        """`host_text` stands in for the emitted one, to try an edited program."""
        plan = self._plan(self._sizes(values, None, asked), asked.options())
        self.last_known = dict(plan.known)
        mesh = self.mesh or Mesh([0])
        bind = compile_text(host_text or plan.emitted.host, plan.key[:12])
        placements = iter(self.inputs.placement.values())
        placed = [None if i in self.inputs.scalars else next(placements) for i in range(len(values))]

        written = self.inputs.written()
        given: dict[int, list[Any]] = {}
        key = draw() if plan.draws else (0, 0)

        @torch.no_grad()
        def run(comm: LocalComm) -> list[torch.Tensor]:
            place = Rank(mesh, comm.rank, comm, plan.known, lambda: key)
            local = [v if p is None else shard(v, p, place.coordinates) for v, p in zip(values, placed, strict=True)]
            given[comm.rank] = [v.clone() if i in written else v for i, v in enumerate(local)]  # ranks share no memory
            return bind(place, self._kernels(plan, place))(*given[comm.rank])

        results = LocalWorld(mesh.ranks).run(run)
        for i, tensor in written.items():
            placement = self.inputs.placement[tensor]
            values[i].copy_(unshard({rank: given[rank][i] for rank in mesh.ranks}, placement, tuple(values[i].shape), tensor.name))
        whole = []
        for i, (out, made) in enumerate(zip(self.traced.program.outputs, plan.local.program.outputs, strict=True)):
            shape = tuple(sizes.evaluate(s, plan.known) for s in out.shape)
            shards = {rank: results[k][i] for k, rank in enumerate(mesh.ranks)}
            whole.append(unshard(shards, plan.local.placement[made], shape, out.name))
        return whole

    # ---- explain ---------------------------------------------------------------------------------------------------------------------------------

    def explain(self, values: Sequence[Any] | None, rank: int | None, stop: str | None, asked: Asked) -> Report:
        found = self._known_for(values, rank, asked)
        device = self.inputs.device(values) if values is not None else None
        if stop is not None:
            return Report(compile_plan(self.traced, found.known, asked.options(device), stop), self._rank_for(rank), stopped=True)
        return Report(self._plan(found, asked.options(device)), self._rank_for(rank))

    def _rank_for(self, rank: int | None) -> int:
        if self.mesh is None:
            return 0
        if rank is None:
            here = Communicator.instance().rank()
            return here if here in self.mesh.ranks else self.mesh.ranks[0]
        if rank not in self.mesh.ranks:
            raise MeshError(f"rank {rank} is not in the mesh {self.mesh!r}")
        return rank

    def _known_for(self, values: Sequence[Any] | None, rank: int | None, asked: Asked) -> Sizes:
        """Sizes from inputs, which may be global or local; from `global_sizes` alone; from the last call; or none."""
        if values is None and asked.global_sizes is None:
            return Sizes(dict(self.last_known or {}), frozenset())
        if values is None:
            shapes = asked.global_sizes or ()
            values = [torch.empty(tuple(s or ()), dtype=t.dtype.torch) for s, t in zip(shapes, self.traced.program.inputs, strict=True)]
        try:
            return self._sizes(values, None, asked)
        except InterfuseError:
            if self.mesh is None:
                raise
            coordinates = self.mesh.coordinates(self._rank_for(rank))
            try:
                return self._sizes(values, coordinates, asked)
            except InputShapeError:
                pass
            raise


def _check_device(asked: Any, device: torch.device) -> None:
    """`device` is where the inputs lie. An integer is accepted for any: it names a rank's device in programs written for nvFuser."""
    if asked is None or isinstance(asked, int):
        return
    wanted = torch.device(asked)
    if wanted.type != device.type or (wanted.index is not None and wanted.index != device.index):
        raise InputDeviceError(f"device={asked!r}: the inputs lie on {device}, and the plan runs there")


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value
