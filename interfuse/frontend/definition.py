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
from interfuse.frontend.descriptors import Layout, checked_shape, compute_tensor_descriptor, layout_of
from interfuse.frontend.domain import over_mesh
from interfuse.frontend.handles import TensorView, Val
from interfuse.frontend.ops import Ops
from interfuse.frontend.record import Call
from interfuse.frontend.sched import Sched
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType, convert, from_torch, of_python
from interfuse.ir.nodes import Const, Contract, Node, Pointwise, Program, Reduce, Requirement, Scalar, ScalarInput, SizeScalar, Tensor
from interfuse.ir.sizes import Size
from interfuse.ir.steering import release
from interfuse.ops.build import fold
from interfuse.ops.elementwise import SET
from interfuse.ops.table import OpRow
from interfuse.shard.mesh import Mesh
from interfuse.shard.placed import Annotations, Traced

if TYPE_CHECKING:
    from interfuse.view.report import Report


class FusionDefinition:
    """A global tensor program, where a few of its tensors lie, and the doors to run and explain it."""

    _view_class: type[TensorView] = TensorView

    def __init__(self) -> None:
        self._record: list[Call] = []
        self._schedule: list[tuple[TensorView, str]] = []
        self._inputs: list[Tensor | tuple[str, DataType]] = []
        self._layouts: dict[Tensor, Layout] = {}
        self._scalars: list[Val] = []
        self._nodes: list[Node] = []
        self._outputs: list[Tensor] = []
        self._equal: list[Requirement] = []
        self._computed: list[tuple[str, Scalar]] = []
        self._aliases: list[tuple[Tensor, Tensor]] = []
        self._random_streams = 0
        self._where: dict[str, str] = {}
        self._views: list[TensorView] = []
        self._handles: set[Tensor] = set()
        self._counts = {"tv": 0, "t": 0, "i": 0, "c": 0, "s": 0}
        self._finished = False
        self.ops, self.sched = Ops(self), Sched()

    def __enter__(self) -> FusionDefinition:
        if self._finished:
            raise DefinitionFinished("this definition is finished; make a new FusionDefinition")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._has_results():
            self._finish()
        self._finished = True

    # ---- inputs and outputs ---------------------------------------------------------------------------------------------------------------

    def define_tensor(self, *args: Any, **kwargs: Any) -> TensorView:
        """An input. Its shape is *global*; three spellings, as in nvFuser:

            define_tensor(shape, contiguity=False, dtype=Float, is_cpu=False, stride_order=())      # one flag for all dims
            define_tensor(shape, contiguity=[True, None], …)                                        # a flag per dim, from slowest to fastest
            define_tensor(sizes=, strides=, dtype=Float, static_sizes=False, is_cpu=False)          # as a tensor has them

        In a shape, -1 is a size known when called, 1 a dim that broadcasts, anything else a fixed size. `sizes` become -1, except 1; all of them
        stay with `static_sizes`. Contiguity and stride order are declarations: inputs may come in any strides.
        Raises ArgumentTypeError, ShapeError.
        """
        self._open("define_tensor")
        try:
            bound = (_by_strides if "sizes" in kwargs or "strides" in kwargs or _are_ints(args[1:2]) else _by_shape)(*args, **kwargs)
        except TypeError as error:
            raise error if isinstance(error, ArgumentTypeError) else ArgumentTypeError(f"define_tensor(): incompatible arguments: {error}") from None
        shape, dtype, layout = bound
        if not isinstance(dtype, DataType):
            raise ArgumentTypeError(f"define_tensor: dtype is a DataType, not {dtype!r}")
        tensor = Tensor(self._name("tv"), tuple(self._symbol() if s == -1 else s for s in shape), dtype)
        self._inputs.append(tensor)
        self._layouts[tensor] = layout
        view = self._handle(tensor)
        spelled: dict[str, Any] = {"shape": shape, "contiguity": layout.contiguity, "dtype": dtype}
        spelled |= {"is_cpu": True} if layout.is_cpu else {}
        spelled |= {"stride_order": layout.stride_order} if layout.stride_order else {}
        self._record.append(Call("define_tensor", (), spelled, (view,)))
        return view

    def from_pytorch(self, tensor: torch.Tensor, static_sizes: bool = False) -> TensorView:
        """An input with a tensor's sizes and type."""
        dtype = from_torch(tensor.dtype)
        if dtype is None:
            raise DtypeError(f"from_pytorch: {tensor.dtype} is not supported")
        is_cpu = tensor.is_cpu and tensor.ndim == 0
        return self.define_tensor(sizes=list(tensor.shape), strides=list(tensor.stride()), dtype=dtype, static_sizes=static_sizes, is_cpu=is_cpu)

    def define_scalar(self, value: bool | int | float | complex | DataType | None = None, dtype: DataType | None = None) -> Val:
        """A constant, or (without a value) an input. Integer inputs may steer shapes: a plan is made for each of their values."""
        self._open("define_scalar")
        if isinstance(value, DataType):
            value, dtype = None, value
        if value is not None:
            return Val(Const(value, dtype or of_python(value)))
        kind = dtype or DataType.Double
        name = self._name("c")
        self._inputs.append((name, kind))
        scalar: Scalar = SizeScalar(sizes.symbol(name), kind) if kind.is_int else ScalarInput(name, kind)
        val = Val(scalar, name)
        self._scalars.append(val)
        self._record.append(Call("define_scalar", (), {"dtype": kind}, (val,)))
        return val

    def define_vector(self, size: int) -> list[Val]:
        """`size` integer scalar inputs; a call may give them as one list or tuple."""
        if isinstance(size, bool) or not isinstance(size, int):
            raise ArgumentTypeError(f"define_vector: a number of scalars, not {size!r}")
        return [self.define_scalar(dtype=DataType.Int) for _ in range(size)]

    def add_output(self, output: TensorView, alias_input: TensorView | None = None) -> None:
        """Returns a tensor from every call; or, with `alias_input`, writes it into that input's memory, once everything that reads the input
        has run. An output that is written into an input is that memory wherever it is returned."""
        self._open("add_output")
        if not isinstance(output, TensorView):
            raise OutputDependsOnNothing(f"add_output: {output!r} is not a tensor of this program: it depends on none of its inputs")
        if output._fd is not self:
            raise OutputDependsOnNothing(f"add_output: {output.name} belongs to another definition: it depends on nothing in this one")
        if alias_input is None:
            self._outputs.append(output.tensor)
            self._record.append(Call("add_output", (output,)))
            return
        target = alias_input.tensor if isinstance(alias_input, TensorView) else None
        if target is None or target not in self._inputs:
            raise DefinitionError(f"add_output: alias_input is {alias_input!r}, not an input tensor of this program")
        if target.ndim != output.ndim:
            raise ShapeError(f"add_output: {output.name} has {output.ndim} dims and cannot be written into {target!r}")
        for d, (made, there) in enumerate(zip(output.tensor.shape, target.shape, strict=True)):
            if made != there:
                self.require_equal(made, there, f"add_output: dim {d} of {output.name} and of the input {target.name} that it is written into")
        source = output.tensor
        if source in self._inputs:  # which may be written itself
            source = self.emit(Pointwise(self.new(source.shape, source.dtype), SET, (source,)))
        self._aliases.append((source, target))
        self._record.append(Call("add_output", (output, alias_input)))

    # ---- the builder that ops write to ----------------------------------------------------------------------------------------------------

    def new(self, shape: Iterable[Size], dtype: DataType) -> Tensor:
        return Tensor(self._name("t"), tuple(shape), dtype)

    def emit(self, node: Node) -> Tensor:
        self._nodes.append(node)
        return node.out

    def require_equal(self, a: Size, b: Size, message: str, error: type[ShapeError] = ShapeError) -> None:
        self._equal.append(Requirement(a, b, message, error))

    def size_symbol(self, scalar: Scalar) -> Size:
        if isinstance(constant := fold(scalar), Const):
            value = convert(constant.value, DataType.Int)
            assert isinstance(value, int)
            return value
        for name, known in self._computed:
            if known == scalar:
                return sizes.symbol(name)
        name = self._name("s")
        self._computed.append((name, scalar))
        return sizes.symbol(name)

    def random_stream(self) -> int:
        self._random_streams += 1
        return self._random_streams - 1

    def _call(self, row: OpRow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._open(f"fd.ops.{row.name}")
        start = len(self._nodes)
        function = f"ops.{row.name}"
        args, kwargs = tuple(_frozen(a) for a in args), {k: _frozen(v) for k, v in kwargs.items()}
        lowered, named = ops_module.lower(row, args, kwargs, self)
        try:
            result = row.build(self, *lowered, **named)
        except TypeError as error:
            if isinstance(error, DefinitionError | ArgumentTypeError):
                raise
            raise ArgumentTypeError(f"{row.signature}: {error}") from error
        if isinstance(result, list):
            call = Call(function, args, kwargs)
            return [Val(s, call=call, result=i) for i, s in enumerate(result)]
        if not isinstance(result, Tensor | tuple):
            return Val(result, call=Call(function, args, kwargs))
        made = self._nodes[start:] if isinstance(result, Tensor) else []
        views = tuple(None if r is None else self._handle(r, made) for r in (result if isinstance(result, tuple) else (result,)))
        self._record.append(Call(function, args, kwargs, views))
        return views if isinstance(result, tuple) else views[0]

    def _handle(self, tensor: Tensor, made: Sequence[Node] = ()) -> TensorView:
        """A handle of its own for a new tensor; an op that changed nothing gives a copy, so that the two can lie differently."""
        if tensor in self._handles:
            tensor = self.emit(Pointwise(self.new(tensor.shape, tensor.dtype), SET, (tensor,)))
        if not tensor.name.startswith("tv"):
            # Tensors are frozen for passes; here the tensor is still being made, and its last step is the name that the user will read.
            object.__setattr__(tensor, "name", self._name("tv"))
        self._handles.add(tensor)
        self._where[tensor.name] = _source_line()
        source, reduced = _reduced_loops(made, tensor)
        view = self._view_class(self, tensor, source, reduced)
        self._views.append(view)
        return view

    # ---- names and states -----------------------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"{kind}{self._counts[kind] - 1}"

    def _symbol(self) -> Size:
        return sizes.symbol(self._name("i"))

    def _open(self, what: str) -> None:
        if self._finished:
            raise DefinitionFinished(f"{what}: this definition is finished; build a new one")

    def _schedule_call(self, view: TensorView, call: str) -> None:
        self._open(view.name + call)
        self._schedule.append((view, call))

    # ---- finishing ------------------------------------------------------------------------------------------------------------------------

    def definition(self) -> None:
        """The program, in the class style."""

    def multidevice_schedule(self) -> None:
        """Where tensors lie, in the class style."""

    def _has_results(self) -> bool:
        return bool(self._outputs or self._aliases)

    def _finish(self) -> None:
        if self._finished:
            return
        if not self._has_results() and type(self).definition is not FusionDefinition.definition:
            self.definition()
            self.multidevice_schedule()
        self._finished = True
        if self._has_results():
            self.source  # noqa: B018  (placements are checked here, while the user's line is near)

    @cached_property
    def source(self) -> Traced:
        """The Traced form and what the user said about placements. Raises the errors of placements."""
        self._finish()
        if not self._has_results():
            raise UndefinedProgram("the definition has no outputs; call add_output")
        tensors = tuple(t for t in self._inputs if isinstance(t, Tensor))
        scalars = tuple((i, t[0], t[1]) for i, t in enumerate(self._inputs) if not isinstance(t, Tensor))
        program = Program(
            tensors, tuple(self._nodes), tuple(self._outputs), scalars, tuple(self._equal), self._where, tuple(self._computed), tuple(self._aliases)
        )
        program = release(program)
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
            if view._domain and view._mesh is None and any(over_mesh(loop.parallel) for loop in view._domain.loops):
                raise PlacementError(f"{view.name} has parallel loops but no mesh")
        return Annotations(next(iter(meshes)), given, reduces)

    # ---- doors ----------------------------------------------------------------------------------------------------------------------------

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
        if any(isinstance(v, list | tuple) for v in inputs):
            inputs = [v for given in inputs for v in (given if isinstance(given, list | tuple) else (given,))]
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
        schedule = [view.name + call for view, call in self._schedule]
        lines = [*(call.statement() for call in self._record), *schedule]
        imports = ["from interfuse import DataType, FusionDefinition" + (", ParallelType" if any("ParallelType." in s for s in lines) else "")]
        if any("DeviceMesh(" in s for s in lines):
            imports.append("from interfuse.multidevice import DeviceMesh")
        torch_names = [n for n in ("Partial", "Replicate", "Shard") if any(f"{n}(" in s for s in schedule)]
        if torch_names:
            imports.append(f"from torch.distributed.tensor import {', '.join(torch_names)}")
        return "\n".join([*imports, "", "", "def program(fd: FusionDefinition) -> None:", *(f"    {line}" for line in lines)]) + "\n"


def _are_ints(values: Sequence[Any]) -> bool:
    """Whether the one value is a list of ints, as strides are; contiguity flags are bools and None."""
    return any(isinstance(v, list | tuple) and v and all(type(i) is int for i in v) for v in values)


def _by_shape(
    shape: Sequence[int],
    contiguity: Sequence[bool | None] | bool = False,
    dtype: DataType = DataType.Float,
    is_cpu: bool = False,
    stride_order: Sequence[int] = (),
) -> tuple[tuple[int, ...], DataType, Layout]:
    checked = checked_shape(shape)
    return checked, dtype, layout_of(checked, contiguity, stride_order, is_cpu)


def _by_strides(
    sizes: Sequence[int], strides: Sequence[int], dtype: DataType = DataType.Float, static_sizes: bool = False, is_cpu: bool = False
) -> tuple[tuple[int, ...], DataType, Layout]:
    contiguity, order = compute_tensor_descriptor(sizes, strides)
    shape = checked_shape([s if static_sizes or s == 1 else -1 for s in checked_shape(sizes)])
    return shape, dtype, layout_of(shape, contiguity, order, is_cpu)


def _frozen(value: Any) -> Any:
    """A call's argument as it is now: the user may change a list later."""
    return tuple(value) if isinstance(value, list) else value


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
