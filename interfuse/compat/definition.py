"""nvFuser's FusionDefinition: a shell around the fusion that its `with` block builds, and around what executes it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from interfuse.compat import ops, schedule
from interfuse.compat.current import FusionGuard, current
from interfuse.compat.executors import FusionExecutorCache, KernelExecutor, runs_on_gpu
from interfuse.compat.fusion import Fusion
from interfuse.compat.translate import translate_fusion
from interfuse.compat.validate import compare, get_val_tolerances, reference
from interfuse.errors import CpuTensorError, ExecutorsMixed, InterfuseError, NoReproInputs, UndefinedProgram
from interfuse.frontend.handles import TensorView, Val


class FusionDefinition:
    """`with FusionDefinition() as fd:` defines a fusion; `fd.ops` and `fd.sched` are modules whose functions act on the fusion being defined.

    Attributes: `fec` and `ke`, the executors once there is one; `fake_inputs`, shapes and types of the last call that was asked to keep them.
    """

    def __init__(self) -> None:
        self.ops, self.sched = ops, schedule
        self.fec: FusionExecutorCache | None = None
        self.ke: KernelExecutor | None = None
        self.fake_inputs: list[Any] | None = None

    def __enter__(self) -> FusionDefinition:
        if not hasattr(self, "_fusion"):
            self._fusion = Fusion()
        self._guard = FusionGuard(self._fusion)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._guard.close()
        if kind is not None:
            print(f"FusionDefinition: {kind.__name__}: {value}")
            traceback.print_tb(trace)

    @property
    def fusion(self) -> Fusion:
        """The fusion that is defined, or that the executor holds. Raises UndefinedProgram."""
        if self.fec is not None:
            return self.fec.fusion()
        if not hasattr(self, "_fusion"):
            raise UndefinedProgram("Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion.")
        return self._fusion

    # ---- defining -------------------------------------------------------------------------------------------------------------------------

    def define_tensor(self, *args: Any, **kwargs: Any) -> TensorView:
        """On a machine with a GPU, `is_cpu` is for 0-dim tensors, or a CpuTensorError."""
        view = current().define_tensor(*args, **kwargs)
        if kwargs.get("is_cpu") and view.ndim and runs_on_gpu():
            raise CpuTensorError(f"define_tensor: {view} is declared is_cpu, but only 0-dim tensors may be")
        return view

    def define_scalar(self, *args: Any, **kwargs: Any) -> Val:
        return current().define_scalar(*args, **kwargs)

    def define_vector(self, size: int) -> list[Val]:
        return current().define_vector(size)

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> TensorView:
        """On a machine with a GPU, CPU tensors are scalars: 0-dim, or a CpuTensorError."""
        if tensor.is_cpu and tensor.ndim and runs_on_gpu():
            raise CpuTensorError("Found unsupported device cpu, only scalar CPU or CUDA tensors are supported")
        return current().from_pytorch(tensor, static_sizes)

    def add_output(self, *args: Any, **kwargs: Any) -> None:
        current().add_output(*args, **kwargs)

    # ---- executing ------------------------------------------------------------------------------------------------------------------------

    def _defined(self) -> Fusion:
        if not hasattr(self, "_fusion"):
            raise UndefinedProgram("Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion.")
        if not self._fusion._record:
            raise UndefinedProgram("Fusion is empty!")
        return self._fusion

    def _executor(self) -> FusionExecutorCache:
        if self.ke is not None:
            raise ExecutorsMixed("KernelExecutor already exists! Use manual_execute() to execute the fusion.")
        if self.fec is None:
            self.fec = FusionExecutorCache(self._defined())
            del self._fusion
        return self.fec

    def execute(
        self,
        inputs: Sequence[Any],
        *,
        device: Any = None,
        save_repro_inputs: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Runs under the compiler's schedule. Raises UndefinedProgram, ExecutorsMixed, and the errors of inputs."""
        executor = self._executor()
        if save_repro_inputs:
            self.fake_inputs = [_fake(v) for v in inputs]
        return executor.execute(inputs, device=device, _enable_options=_enable_options, _disable_options=_disable_options)

    def manual_execute(self, inputs: Sequence[Any], heuristic_params: Any = None) -> list[torch.Tensor]:
        """Runs under the user's kernel schedule."""
        if self.fec is not None:
            raise ExecutorsMixed("FusionExecutorCache already exists! Use execute() to execute the fusion.")
        if self.ke is None:
            executor = KernelExecutor()
            executor.compile(self._defined(), inputs)
            self.ke = executor
        return self.ke.run(inputs)

    def validate(
        self, inputs: Sequence[Any], reference_outputs: Sequence[torch.Tensor] | None = None, device: Any = None, **options: Any
    ) -> list[torch.Tensor]:
        """Executes and compares with references, or with PyTorch computing op by op. Gives the outputs. Raises ValidationError."""
        fusion = self._executor().fusion()
        expected = reference(fusion, inputs) if reference_outputs is None else reference_outputs
        tolerances = get_val_tolerances(fusion, inputs)
        outputs = self.execute(inputs, device=device, **options)
        compare(outputs, expected, tolerances)
        return outputs

    def manual_validate(self, inputs: Sequence[Any], reference_outputs: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """The same under the user's kernel schedule."""
        fusion = self.fusion
        expected = reference(fusion, inputs) if reference_outputs is None else reference_outputs
        outputs = self.manual_execute(inputs)
        compare(outputs, expected, get_val_tolerances(fusion, inputs))
        return outputs

    def validate_definition(self) -> tuple[bool, str]:
        """Whether the definition stands, and what is wrong with it."""
        try:
            self.fusion.source  # noqa: B018
        except InterfuseError as error:
            return False, str(error)
        return True, ""

    # ---- text -----------------------------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return translate_fusion(self.fusion)

    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """A script that defines the fusion and, with inputs, runs it on random ones of the same shapes and types."""
        head = [f"# torch version: {torch.__version__}", "", "import torch", "from nvfuser_direct import FusionDefinition, DataType"]
        text = "\n".join(head) + "\n" + repr(self) + "with FusionDefinition() as fd:\n    nvfuser_fusion(fd)\n"
        if inputs is None:
            return text
        return text + "\ninputs = [\n" + "".join(f"    {_maker(v)},\n" for v in inputs) + "]\nfd.execute(inputs)\n"

    def last_repro_script(self) -> str:
        """The script for the inputs that `execute(inputs, save_repro_inputs=True)` kept. Raises NoReproInputs without such a call."""
        if self.fake_inputs is None:
            raise NoReproInputs("fd.last_repro_script() cannot provide a repro because fd.execute(inputs, save_repro_inputs=True) was not executed!")
        return self.repro_script_for(self.fake_inputs)


class _Shape:
    """What is kept of an input: no elements."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.text = _maker(tensor)


def _fake(value: Any) -> Any:
    return _Shape(value) if isinstance(value, torch.Tensor) else value


def _maker(value: Any) -> str:
    """An expression for an input like this one."""
    if isinstance(value, _Shape):
        return value.text
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.is_contiguous():
        return f"torch.testing.make_tensor({tuple(value.shape)}, dtype={value.dtype}, device='{value.device}')"
    count = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    flat = f"torch.testing.make_tensor(({count},), dtype={value.dtype}, device='{value.device}')"
    return f"{flat}.as_strided({tuple(value.shape)}, {tuple(value.stride())})"
