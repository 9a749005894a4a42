"""What runs a fusion: FusionExecutorCache (scheduled by the compiler) and KernelExecutor (scheduled by the user)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from interfuse.compat.fusion import Fusion
from interfuse.compat.multidevice import Sharding
from interfuse.compat.options import core_options
from interfuse.compat.profile import recorded
from interfuse.compat.wording import reworded
from interfuse.errors import InputError, NoScheduler, NotCompiled
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Contract, operands

_MOST_FUSIONS = 4096
_COMPILED: OrderedDict[Hashable, Fusion] = OrderedDict()


def representative(fusion: Fusion) -> Fusion:
    """The first fusion that was the same as this one: what is compiled for one serves all."""
    found = _COMPILED.setdefault(fusion.key(), fusion)
    _COMPILED.move_to_end(fusion.key())
    if len(_COMPILED) > _MOST_FUSIONS:
        _COMPILED.popitem(last=False)
    return found


class FusionExecutorCache:
    """Runs a fusion for whatever inputs come, a plan for each signature."""

    def __init__(self, fusion: Fusion, fusion_id: int = 0, auto_schedule: bool = True) -> None:
        self._fusion, self.fusion_id = fusion, fusion_id
        self._shared = representative(fusion)
        self._ran: set[Hashable] = set()

    def fusion(self) -> Fusion:
        return self._fusion

    def execute(
        self, inputs: Sequence[Any], *, device: Any = None, _enable_options: Sequence[str] = (), _disable_options: Sequence[str] = ()
    ) -> list[torch.Tensor]:
        """Raises what `FusionDefinition.execute` of the core raises, and NoScheduler."""
        enable, disable = core_options(_enable_options, _disable_options)
        if "fuse_matmul" in _enable_options and "matmul_expr_eval" in _disable_options:
            self._require_matmul_kernels()
        if runs_on_gpu():
            self._require_device_outputs()
        inputs = list(inputs)
        with recorded(self._shared, inputs, self.fusion_id):
            outputs = execute(self._shared, inputs, device=landing(device, inputs), _enable_options=enable, _disable_options=disable)
        self._ran.add(_signature(inputs))
        return outputs

    def _require_matmul_kernels(self) -> None:
        for node in self._shared.source.program.nodes:
            if isinstance(node, Contract) and node.out.dtype not in (DataType.Half, DataType.BFloat16):
                raise NoScheduler(
                    f"Can not find a scheduler to schedule fusion segment: {node.out.name} is a product of {node.out.dtype.short} tensors, "
                    f"which only a library call computes; leave matmul_expr_eval enabled"
                )

    def _require_device_outputs(self) -> None:
        program = self._shared.source.program
        on_host = {t for t in program.inputs if (layout := self._shared._layouts.get(t)) is not None and layout.is_cpu}
        computed = set()
        for node in program.nodes:
            read = operands(node)
            if read and all(t in on_host for t in read):
                on_host.add(node.out)
                computed.add(node.out)
        if found := [t for t in program.outputs if t in computed]:
            raise NoScheduler(
                f"KernelExecutor does not support the Fusion provided. The output {found[0].name} is computed from CPU scalars alone; "
                f"compute it before the call"
            )

    def is_compiled(self, inputs: Sequence[Any], device: int = 0) -> bool:
        """Whether inputs of these types and sizes have run."""
        return _signature(inputs) in self._ran

    def get_cuda_kernel(self, inputs: Sequence[Any], intrinsic_code: bool = False, device: int = 0) -> str:
        """The emitted kernels, or the host program where all segments are library calls."""
        report = self._shared.explain(inputs)
        return "\n".join(s.source for s in report.segments if s.source) or report.source("host")

    def get_scheduled_ir(self, inputs: Sequence[Any], tensor_transforms: bool = False, device: int = 0) -> str:
        """Segments in order, and what they read and write."""
        return str(self._shared.explain(inputs, stop="scheduled"))

    def get_most_recent_scheduled_ir(self, tensor_transforms: bool = False) -> str:
        return str(self._shared.explain(stop="scheduled"))

    def get_output_shardings(self) -> list[Any]:
        """Where the outputs lie, one entry each; empty for a program without a mesh."""
        mesh = self._shared._calls.mesh
        if mesh is None:
            return []
        local = self._shared.explain().plan.local
        return [Sharding(mesh, local.placement[t]) for t in local.program.outputs]


def execute(fusion: Fusion, inputs: Sequence[Any], **options: Any) -> list[torch.Tensor]:
    """Runs a fusion; errors of inputs come in nvFuser's words too."""
    try:
        return fusion.execute(inputs, **options)
    except InputError as error:
        raise reworded(error, fusion, inputs) from None


def runs_on_gpu() -> bool:
    """Whether this torch was built for a GPU and finds one."""
    return torch.backends.cuda.is_built() and torch.cuda.is_available()


def landing(device: Any, inputs: Sequence[Any]) -> Any:
    """The device to ask the core for: tensors say where they are; without one, wherever torch puts a tensor of that device."""
    if device is None or any(isinstance(v, torch.Tensor) for v in inputs):
        return None
    return torch.empty(0, device=f"cuda:{device}" if isinstance(device, int) else device).device


def _signature(inputs: Sequence[Any]) -> Hashable:
    return tuple((v.dtype, tuple(v.shape), v.device) if isinstance(v, torch.Tensor) else type(v) for v in inputs)


@dataclass
class LaunchParams:
    """Launch sizes. Recorded."""

    bdimx: int = -1
    bdimy: int = -1
    bdimz: int = -1
    gdimx: int = -1
    gdimy: int = -1
    gdimz: int = -1


@dataclass(kw_only=True)
class CompileParams:
    """How kernels are compiled. Recorded."""

    index_type: Any = None
    maxrregcount: int = 255
    enable_magic_zero: bool = True
    enable_ptxas_verbose: bool = False
    device: Any = None
    include_paths: list[str] = field(default_factory=list)


class KernelExecutor:
    """Runs a fusion that the user has scheduled. The kernel schedule is recorded; results do not depend on it."""

    def __init__(self, fusion_id: int = 0, concrete_id: int = 0, runtime_id: int = 0, group_id: int = 0) -> None:
        self._fusion: Fusion | None = None
        self.fusion_id = fusion_id

    def compile(
        self, fusion: Fusion, args: Sequence[Any] = (), launch_constraints: Any = None, compile_params: Any = None, scheduler_type: Any = None
    ) -> None:
        """Raises the errors of the definition and of its placements."""
        self._fusion = representative(fusion)

    def run(self, args: Sequence[Any], launch_constraints: Any = None, compile_params: Any = None) -> list[torch.Tensor]:
        if self._fusion is None:
            raise NotCompiled("KernelExecutor.run: nothing is compiled; call compile(fusion, args) first")
        args = list(args)
        with recorded(self._fusion, args, self.fusion_id, user=True):
            return execute(self._fusion, args)

    def is_compiled(self) -> bool:
        return self._fusion is not None

    def is_programmatic_dependent_launch_enabled(self) -> bool:
        """Whether a launch may begin before the one before it has ended. The host program launches in order, so it never has to ask."""
        return True
