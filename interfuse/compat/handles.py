"""nvFuser's TensorView: the core's handle, spelled nvFuser's way, and with the calls that belong to kernel schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from interfuse.frontend.domain import Domain, Loop, ParallelType
from interfuse.frontend.handles import IterDomain
from interfuse.frontend.handles import TensorView as CoreTensorView
from interfuse.frontend.record import Call
from interfuse.ir.nodes import Tensor

if TYPE_CHECKING:
    from interfuse.compat.fusion import Fusion

_LOOP_KIND = {
    ParallelType.mesh_x: "deviceIdx.x",
    ParallelType.mesh_y: "deviceIdx.y",
    ParallelType.mesh_z: "deviceIdx.z",
    ParallelType.grid_x: "blockIdx.x",
    ParallelType.grid_y: "blockIdx.y",
    ParallelType.grid_z: "blockIdx.z",
    ParallelType.block_x: "threadIdx.x",
    ParallelType.block_y: "threadIdx.y",
    ParallelType.block_z: "threadIdx.z",
    ParallelType.unroll: "UR",
    ParallelType.unswitch: "US",
    ParallelType.vectorize: "V",
    ParallelType.stream: "streamIdx",
    ParallelType.tma: "B",
    ParallelType.mma: "MMA",
}
_TYPE_NAME = {
    "Double": "double",
    "Half": "__half",
    "BFloat16": "__bfloat",
    "Int": "int64_t",
    "Int32": "int",
    "UInt64": "uint64_t",
    "Index": "nvfuser_index_t",
    "Bool": "bool",
    "ComplexFloat": "std::complex<float>",
    "ComplexDouble": "std::complex<double>",
}


class TensorDomain:
    """The loops of a tensor as one value."""

    def __init__(self, ids: Sequence[IterDomain]) -> None:
        self._ids = list(ids)

    def __str__(self) -> str:
        return "[" + ", ".join(str(i) for i in self._ids) + "]"

    __repr__ = __str__


class NumberedLoop(IterDomain):
    """A loop that prints with its number in the fusion, `iS0{2}`."""

    def __str__(self) -> str:
        loop = self._loop
        number = self._owner._fd.numbers.of(loop)  # type: ignore[attr-defined]
        extent = loop.extent()
        mark = "r" if loop.is_reduction() else "b" if extent == 1 and not self._owner._is_kernel_loop(loop) else "i"  # type: ignore[attr-defined]
        kind = "S" if loop.parallel is None else _LOOP_KIND.get(loop.parallel, "S")  # type: ignore[arg-type]
        return f"{mark}{kind}{number}{{{extent}}}"

    __repr__ = __str__


class Expr:
    """What made a tensor: its operands and results by position."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def input(self, i: int) -> Any:
        """Operand number `i` that is a tensor."""
        return [a for a in (*self._call.args, *self._call.kwargs.values()) if isinstance(a, CoreTensorView)][i]

    def output(self, i: int) -> Any:
        return self._call.results[i]

    def __str__(self) -> str:
        return self._call.statement()


class BroadcastOp(Expr):
    """Dims of size 1 were added."""


class SqueezeOp(Expr):
    """Dims of size 1 were dropped."""


class ReshapeOp(Expr):
    """The shape changed, the elements did not."""


class Split:
    """A loop became two."""


class Merge:
    """Two loops became one."""


_EXPR = {"ops.broadcast": BroadcastOp, "ops.broadcast_in_dim": BroadcastOp, "ops.squeeze": SqueezeOp, "ops.reshape": ReshapeOp}


class TensorView(CoreTensorView):
    """A tensor of the *global* program. Calls that shape a kernel are recorded; they change no result."""

    _fd: Fusion

    def __init__(self, fd: Fusion, tensor: Tensor, reduces: Tensor | None, reduced: Sequence[tuple[int, Any]]) -> None:
        super().__init__(fd, tensor, reduces, reduced)
        for loop in self._domain.loops:
            fd.numbers.of(loop)
        self._logical = list(self._domain.loops)

    # ---- facts ---------------------------------------------------------------------------------------------------------------------------

    def definition(self) -> Expr | None:
        """What made the tensor; None for an input."""
        call = next((c for c in self._fd._record if any(r is self for r in c.results)), None)
        return None if call is None or call.function == "define_tensor" else _EXPR.get(call.function, Expr)(call)

    def uses(self) -> list[Expr]:
        return [_EXPR.get(c.function, Expr)(c) for c in self._fd._record if any(a is self for a in (*c.args, *c.kwargs.values())) and c.results]

    def is_symbolic(self) -> bool:
        return True

    def has_root(self) -> bool:
        return False

    def axis(self, i: int) -> NumberedLoop:
        position = self._domain.index(i, f"{self.name}.axis")
        return NumberedLoop(self, position, self._domain.loops[position])

    def domain(self) -> TensorDomain:
        return TensorDomain(self.get_loop_domain())

    def get_loop_domain(self) -> list[IterDomain]:
        return [NumberedLoop(self, i, loop) for i, loop in enumerate(self._domain.loops)]

    def get_logical_domain(self) -> list[IterDomain]:
        return [NumberedLoop(self, i, loop) for i, loop in enumerate(self._logical)]

    def get_root_domain(self) -> list[IterDomain]:
        return self.get_logical_domain()

    def _is_kernel_loop(self, loop: Loop) -> bool:
        return loop not in self._logical

    # ---- kernel schedules ----------------------------------------------------------------------------------------------------------------

    def set_memory_type(self, memory_type: Any) -> TensorView:
        self._record(f".set_memory_type({memory_type})")
        return self

    def swizzle(self, x: int, y: int) -> TensorView:
        self._record(f".swizzle({x}, {y})")
        return self

    def swizzle1d(self, x: int, parallel_type: ParallelType) -> TensorView:
        self._record(f".swizzle1d({x}, {parallel_type})")
        return self

    def rfactor(self, axes: Sequence[int]) -> TensorView:
        """A handle of the partial reduction over `axes`, which this tensor's loops lose."""
        self._record(f".rfactor({list(axes)})")
        gone = {self._domain.index(a, f"{self.name}.rfactor") for a in axes}
        partial = self._beside(self._domain.loops)
        self._domain.loops = [loop for i, loop in enumerate(self._domain.loops) if i not in gone]
        return partial

    def cache_after(self, op_type: Any = None, cache_op: Any = None, propagate_allocation_domain: bool = True, cached_uses: Any = ()) -> TensorView:
        """A handle of the copy that later readers read."""
        self._record(f".cache_after({op_type}, {cache_op})")
        return self._beside([loop for loop in self._logical if not loop.is_reduction()])

    def cache_before(self, op_type: Any = None) -> TensorView:
        """A handle of the copy that this tensor is then stored from."""
        self._record(f".cache_before({op_type})")
        return self._beside(self._domain.loops)

    def cache_fork(self) -> TensorView:
        self._record(".cache_fork()")
        return self._beside(self._domain.loops)

    def _beside(self, loops: Sequence[Loop]) -> TensorView:
        """A handle for a tensor that only the kernel has. Its loops are its own: spreading them says nothing of the program."""
        tensor = Tensor(self._fd._name("tv"), self.tensor.shape, self.tensor.dtype)
        view = TensorView(self._fd, tensor, None, [])
        view._domain = Domain([Loop(loop.origin, loop.parallel) for loop in loops])
        return view

    # ---- text ----------------------------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        is_global = self.tensor in self._fd._outputs or self.tensor in self._fd._inputs
        name = _TYPE_NAME.get(self.dtype().name, self.dtype().name.lower())
        return f"T{self.name[2:]}_{'g' if is_global else 'l'}_{name}{self.domain()}"

    __repr__ = __str__


def type_name(dtype: Any) -> str:
    """The C name of a type, as nvFuser's messages have it."""
    return _TYPE_NAME.get(dtype.name, dtype.name.lower())
