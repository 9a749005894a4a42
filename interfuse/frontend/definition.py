"""FusionDefinition: one *global* program, in both styles.

    with FusionDefinition() as fd:              class Model(FusionDefinition):
        x = fd.define_tensor([-1, -1])              def definition(self): …
        fd.add_output(fd.ops.relu(x))               def multidevice_schedule(self): …      # optional

Every call is recorded as text (for `repr`) and as nodes (the Traced form). A definition is finished when its `with` block ends, or at the first
execute, simulate, explain or repr; ops on it are errors from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from interfuse.errors import (
    ArgumentTypeError,
    DefinitionError,
    DefinitionFinished,
    DtypeError,
    OutputDependsOnNothing,
    PlacementError,
    ShapeError,
    UndefinedProgram,
)
from interfuse.frontend import ops as ops_module
from interfuse.frontend.calls import Asked, Calls
from interfuse.frontend.handles import TensorView, Val
from interfuse.frontend.ops import Ops
from interfuse.frontend.sched import Sched
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType, from_torch, of_python
from interfuse.ir.nodes import Const, Contract, Node, Pointwise, Program, Reduce, Requirement, Scalar, ScalarInput, SizeScalar, Tensor
from interfuse.ir.sizes import Size
from interfuse.ops.elementwise import SET
from interfuse.ops.table import OpRow
from interfuse.shard.mesh import Mesh
from interfuse.shard.placed import Annotations, Traced

if TYPE_CHECKING:
    from interfuse.view.report import Report


class FusionDefinition:
    """A global tensor program, where a few of its tensors lie, and the doors to run and explain it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._schedule: list[str] = []
        self._inputs: list[Tensor | tuple[str, DataType]] = []
        self._nodes: list[Node] = []
        self._outputs: list[Tensor] = []
        self._equal: list[Requirement] = []
        self._where: dict[str, str] = {}
        self._views: list[TensorView] = []
        self._handles: set[Tensor] = set()
        self._counts = {"tv": 0, "t": 0, "i": 0, "c": 0}
        self._finished = False
        self.ops, self.sched = Ops(self), Sched()

    def __enter__(self) -> FusionDefinition:
        if self._finished:
            raise DefinitionFinished("this definition is finished; make a new FusionDefinition")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._outputs:
            self._finish()
        self._finished = True

    # ---- inputs and outputs -----------------------------------------------------------------------------------------------------------------------

    def define_tensor(
        self,
        shape: Sequence[int] | None = None,
        contiguity: Sequence[bool | None] | bool = False,
        dtype: DataType = DataType.Float,
        is_cpu: bool = False,
        stride_order: Sequence[int] = (),
        *,
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        static_sizes: bool = False,
    ) -> TensorView:
        """An input. `shape` is *global*: -1 is a size known when called, 1 a dim that broadcasts, anything else a fixed size.

        `sizes` and `strides` describe a tensor instead: its sizes become -1, except 1 (and all of them stay with `static_sizes`). Contiguity and
        stride order are accepted for any layout: inputs may come in any strides.
        """
        self._open("define_tensor")
        if shape is None:
            if sizes is None:
                raise ArgumentTypeError("define_tensor needs shape=, or sizes= and strides=")
            shape = [s if static_sizes or s == 1 else -1 for s in sizes]
        shape = [self._checked_size(s) for s in shape]
        if not isinstance(dtype, DataType):
            raise ArgumentTypeError(f"define_tensor: dtype is a DataType, not {dtype!r}")
        if isinstance(contiguity, (list, tuple)) and len(contiguity) != len(shape):
            raise ShapeError(f"define_tensor: {len(contiguity)} contiguity flags for {len(shape)} dims")
        if stride_order and sorted(d % max(len(shape), 1) for d in stride_order) != list(range(len(shape))):
            raise ShapeError(f"define_tensor: stride_order {list(stride_order)} is not a permutation of {len(shape)} dims")
        tensor = Tensor(self._name("tv"), tuple(self._symbol() if s == -1 else s for s in shape), dtype)
        self._inputs.append(tensor)
        extra = (", is_cpu=True" if is_cpu else "") + (f", stride_order={list(stride_order)}" if stride_order else "")
        flags = contiguity if isinstance(contiguity, bool) else list(contiguity)
        return self._handle(tensor, f"fd.define_tensor(shape={list(shape)}, contiguity={flags}, dtype={dtype}{extra})")

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> TensorView:
        """An input with a tensor's sizes and type."""
        dtype = from_torch(tensor.dtype)
        if dtype is None:
            raise DtypeError(f"from_pytorch: {tensor.dtype} is not supported")
        return self.define_tensor(sizes=list(tensor.shape), strides=list(tensor.stride()), dtype=dtype, static_sizes=static_sizes)

    def define_scalar(self, value: bool | int | float | DataType | None = None, dtype: DataType | None = None) -> Val:
        """A constant, or (without a value) an input. Integer inputs may steer shapes: a plan is made for each of their values."""
        self._open("define_scalar")
        if isinstance(value, DataType):
            value, dtype = None, value
        if value is not None:
            kind = dtype or of_python(value)
            return Val(Const(value, kind), repr(value) if dtype is None else f"fd.define_scalar({value!r}, dtype={dtype})")
        kind = dtype or DataType.Double
        name = self._name("c")
        self._inputs.append((name, kind))
        self._lines.append(f"{name} = fd.define_scalar(dtype={kind})")
        scalar: Scalar = SizeScalar(sizes.symbol(name), kind) if kind.is_int else ScalarInput(name, kind)
        return Val(scalar, name)

    def define_vector(self, size: int) -> list[Val]:
        """`size` integer scalar inputs."""
        return [self.define_scalar(dtype=DataType.Int) for _ in range(size)]

    def add_output(self, output: TensorView) -> None:
        """Returns a tensor from every call."""
        self._open("add_output")
        if not isinstance(output, TensorView):
            raise OutputDependsOnNothing(f"add_output: {output!r} is not a tensor of this program: it depends on none of its inputs")
        if output._fd is not self:
            raise OutputDependsOnNothing(f"add_output: {output.name} belongs to another definition: it depends on nothing in this one")
        self._outputs.append(output.tensor)
        self._lines.append(f"fd.add_output({output.name})")

    # ---- the builder that ops write to ------------------------------------------------------------------------------------------------------------

    def new(self, shape: Iterable[Size], dtype: DataType) -> Tensor:
        return Tensor(self._name("t"), tuple(shape), dtype)

    def emit(self, node: Node) -> Tensor:
        self._nodes.append(node)
        return node.out

    def require_equal(self, a: Size, b: Size, message: str, error: type[ShapeError] = ShapeError) -> None:
        self._equal.append(Requirement(a, b, message, error))

    def _call(self, row: OpRow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._open(f"fd.ops.{row.name}")
        start = len(self._nodes)
        text = ops_module.call_text(row, args, kwargs)
        lowered, named = ops_module.lower(row, args, kwargs, self)
        try:
            result = row.build(self, *lowered, **named)
        except TypeError as error:
            if isinstance(error, DefinitionError | ArgumentTypeError):
                raise
            raise ArgumentTypeError(f"{row.signature}: {error}") from error
        if isinstance(result, Tensor):
            return self._handle(result, text, self._nodes[start:])
        if isinstance(result, tuple):
            return self._handles_of(result, text, self._nodes[start:])
        if isinstance(result, list):
            return [Val(s, f"{text}[{i}]") for i, s in enumerate(result)]
        return Val(result, text)

    def _handles_of(self, results: tuple[Tensor, ...], text: str, made: list[Node]) -> tuple[TensorView, ...]:
        views = tuple(self._handle(r, "", []) for r in results)
        self._lines.append(f"{', '.join(v.name for v in views)} = {text}")
        return views

    def _handle(self, tensor: Tensor, text: str, made: Sequence[Node] = ()) -> TensorView:
        """A handle of its own for a new tensor; an op that changed nothing gives a copy, so that the two can lie differently."""
        if tensor in self._handles:
            tensor = self.emit(Pointwise(self.new(tensor.shape, tensor.dtype), SET, (tensor,)))
        if not tensor.name.startswith("tv"):
            # Tensors are frozen for passes; here the tensor is still being made, and its last step is the name that the user will read.
            object.__setattr__(tensor, "name", self._name("tv"))
        self._handles.add(tensor)
        self._where[tensor.name] = _source_line()
        if text:
            self._lines.append(f"{tensor.name} = {text}")
        source, reduced = _reduced_loops(made, tensor)
        view = TensorView(self, tensor, source, reduced)
        self._views.append(view)
        return view

    # ---- names and states ---------------------------------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"{kind}{self._counts[kind] - 1}"

    def _symbol(self) -> Size:
        return sizes.symbol(self._name("i"))

    @staticmethod
    def _checked_size(size: object) -> int:
        if isinstance(size, bool) or not isinstance(size, int):
            raise ArgumentTypeError(f"define_tensor: a size is an int, not {size!r}")
        if size < -1:
            raise ShapeError(f"define_tensor: {size} is not a size; -1 stands for one that is known when called")
        return size

    def _open(self, what: str) -> None:
        if self._finished:
            raise DefinitionFinished(f"{what}: this definition is finished; build a new one")

    def _schedule_call(self, text: str) -> None:
        self._open(text)
        self._schedule.append(text)

    # ---- finishing ------------------------------------------------------------------------------------------------------------------------------------

    def definition(self) -> None:
        """The program, in the class style."""

    def multidevice_schedule(self) -> None:
        """Where tensors lie, in the class style."""

    def _finish(self) -> None:
        if self._finished:
            return
        if not self._outputs and type(self).definition is not FusionDefinition.definition:
            self.definition()
            self.multidevice_schedule()
        self._finished = True
        if self._outputs:
            self.source  # noqa: B018  (placements are checked here, while the user's line is near)

    @cached_property
    def source(self) -> Traced:
        """The Traced form and what the user said about placements. Raises the errors of placements."""
        self._finish()
        if not self._outputs:
            raise UndefinedProgram("the definition has no outputs; call add_output")
        tensors = tuple(t for t in self._inputs if isinstance(t, Tensor))
        scalars = tuple((i, t[0], t[1]) for i, t in enumerate(self._inputs) if not isinstance(t, Tensor))
        program = Program(tensors, tuple(self._nodes), tuple(self._outputs), scalars, tuple(self._equal), self._where)
        return Traced(program, self._annotations())

    def _annotations(self) -> Annotations | None:
        meshes: dict[Mesh, str] = {}
        given, reduces = {}, {}
        for view in self._views:
            placed = view.placement()
            if placed is None:
                continue
            placement, reduced = placed
            meshes.setdefault(placement.mesh, view.name)
            given[view.tensor] = placement
            if reduced and view._reduces is not None:
                reduces[view._reduces] = reduced
        if not meshes:
            return None
        for view in self._views:
            if view._domain and view._mesh is None and any(loop.parallel for loop in view._domain.loops):
                raise PlacementError(f"{view.name} has parallel loops but no mesh")
        return Annotations(next(iter(meshes)), given, reduces)

    # ---- doors ------------------------------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _calls(self) -> Calls:
        return Calls(self.source)

    def execute(
        self,
        inputs: Sequence[Any],
        *,
        device: int | str | torch.device | None = None,
        global_sizes: Sequence[Sequence[int] | None] | None = None,
        strict: bool = False,
        save_repro_inputs: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Runs the program on this rank.

        `inputs` are this rank's *local* shards in the order of definition, scalars as Python numbers; the result is the list of this rank's local
        outputs. `global_sizes[i]` is the *global* shape of input i where it cannot be known from local sizes (an uneven symbolic split dim).
        Ranks outside the mesh return an empty list. Raises InputError and its kinds, RankFailed.
        """
        if device is None and global_sizes is None and not strict and not _enable_options and not _disable_options:
            return self._calls.execute(inputs, None)
        return self._calls.execute(inputs, Asked(device, global_sizes, strict, tuple(_enable_options), tuple(_disable_options)))

    def simulate(
        self,
        global_inputs: Sequence[Any],
        *,
        strict: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[torch.Tensor]:
        """Runs the program of every rank of the mesh in this process, one thread a rank, on the CPU.

        Takes and gives *global* tensors. Raises ReplicasDiffer if ranks that should hold the same values do not.
        """
        return self._calls.simulate(global_inputs, Asked(None, None, strict, tuple(_enable_options), tuple(_disable_options)))

    def explain(
        self,
        inputs: Sequence[Any] | None = None,
        *,
        global_sizes: Sequence[Sequence[int] | None] | None = None,
        rank: int | None = None,
        stop: str | None = None,
        target: str | None = None,
        strict: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> Report:
        """What a call would do: placements, collectives with bytes, segments, emitted text. Needs neither ranks nor devices.

        `target` plans and emits for a device that need not be here: cpu, sm_80, sm_90, sm_100, gfx942.
        `inputs` may be global or local; without them the sizes of the last call are used, and if there was none sizes stay symbols.
        """
        asked = Asked(None, global_sizes, strict, tuple(_enable_options), tuple(_disable_options), target)
        return self._calls.explain(inputs, rank, stop, asked)

    def __repr__(self) -> str:
        """Runnable Python: defines `program(fd)`, which rebuilds this definition and its schedule."""
        self._finish()
        lines = [*self._lines, *self._schedule]
        imports = ["from interfuse import DataType, FusionDefinition" + (", ParallelType" if any("ParallelType." in s for s in lines) else "")]
        if any("DeviceMesh(" in s for s in lines):
            imports.append("from interfuse.multidevice import DeviceMesh")
        torch_names = [n for n in ("Partial", "Replicate", "Shard") if any(f"{n}(" in s for s in self._schedule)]
        if torch_names:
            imports.append(f"from torch.distributed.tensor import {', '.join(torch_names)}")
        return "\n".join([*imports, "", "", "def program(fd: FusionDefinition) -> None:", *(f"    {line}" for line in lines)]) + "\n"


def _reduced_loops(made: Sequence[Node], tensor: Tensor) -> tuple[Tensor | None, list[tuple[int, Size]]]:
    """The tensor whose dims are reduced when `tensor` is made, and where its reduced loops stand among the result's: in place, or last."""
    for node in reversed(made):
        if isinstance(node, Reduce) and node.out is tensor:
            return node.out, [(d, node.arg.shape[d]) for d in node.dims]
        if isinstance(node, Contract):
            return node.out, [(tensor.ndim, node.a.shape[-1])]
    return None, []


def _source_line() -> str:
    """The user's file and line: the nearest frame outside this package's frontend."""
    frame = sys._getframe(1)
    while frame.f_back is not None and "/interfuse/frontend/" in frame.f_code.co_filename.replace("\\", "/"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


