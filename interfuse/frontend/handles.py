"""What a user holds while defining a program: tensors, scalars, loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from interfuse.errors import PlacementDimError, PlacementError
from interfuse.frontend.domain import Domain, Loop, ParallelType, Root, over_mesh, placement
from interfuse.frontend.record import Call, Handle, spelled
from interfuse.ir.dtypes import DataType, of_python
from interfuse.ir.nodes import Const, Scalar, SizeScalar, Tensor
from interfuse.ir.sizes import Size
from interfuse.shard.mesh import Mesh
from interfuse.shard.placement import Placement, Split, place

if TYPE_CHECKING:
    from interfuse.frontend.definition import FusionDefinition


class Val(Handle):
    """A scalar of the program: a constant, a size, a scalar input, or arithmetic on those.

    Inputs have a name; what a call gave knows the call, and which of its results it is where there are several.
    """

    __slots__ = ("call", "name", "result", "scalar")

    def __init__(self, scalar: Scalar, name: str = "", call: Call | None = None, result: int | None = None) -> None:
        self.scalar, self.name, self.call, self.result = scalar, name, call, result

    @property
    def text(self) -> str:
        if self.name:
            return self.name
        if self.call is not None:
            return self.call.expression() + ("" if self.result is None else f"[{self.result}]")
        assert isinstance(self.scalar, Const)
        if self.scalar.dtype is of_python(self.scalar.value):
            return spelled(self.scalar.value)
        return f"fd.define_scalar({spelled(self.scalar.value)}, dtype={self.scalar.dtype})"

    def dtype(self) -> DataType:
        return self.scalar.dtype

    def is_tensor(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        """Whether its value is unknown until a call."""
        return not isinstance(self.scalar, Const) and not (isinstance(self.scalar, SizeScalar) and isinstance(self.scalar.value, int))

    def __repr__(self) -> str:
        return self.text


class IterDomain:
    """One loop of a tensor."""

    def __init__(self, owner: TensorView, position: int, loop: Loop) -> None:
        self._owner, self._position, self._loop = owner, position, loop

    def parallelize(self, parallel: ParallelType | str) -> None:
        """Spreads the loop over a mesh axis, by type (`ParallelType.mesh_x`) or by the axis's name. On a loop that no split made, the whole dim
        is spread: its extent must equal the axis's size, and the local size is 1."""
        self._owner._record(f".axis({self._position}).parallelize({parallel if isinstance(parallel, ParallelType) else repr(parallel)})")
        self._loop.parallel = None if parallel is ParallelType.serial else parallel

    def is_reduction(self) -> bool:
        return self._loop.is_reduction()

    def extent(self) -> Size:
        return self._loop.extent()

    def __str__(self) -> str:
        return str(self._loop)


class TensorView(Handle):
    """A tensor of the *global* program, and how it is to lie on the mesh.

    Loop indices count loops, reductions included: a sum's reduced dims stay in place, the contracted dim of linear and matmul comes last. `ndim`
    counts dims of the result alone.
    """

    def __init__(self, fd: FusionDefinition, tensor: Tensor, reduces: Tensor | None, reduced: Sequence[tuple[int, Size]]) -> None:
        self._fd, self.tensor, self._reduces = fd, tensor, reduces
        loops = [Loop(Root(d, s)) for d, s in enumerate(tensor.shape)]
        for position, extent in reduced:
            loops.insert(position, Loop(Root(position, extent, reduction=True)))
        self._domain = Domain(loops)
        self._mesh: Mesh | None = None
        self._explicit: Placement | None = None

    # ---- facts ----------------------------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def text(self) -> str:
        return self.tensor.name

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    def dtype(self) -> DataType:
        return self.tensor.dtype

    def is_tensor(self) -> bool:
        return True

    def size(self, dim: int) -> Val:
        """Global size of a dim."""
        return self._fd.ops.size(self, dim)

    def shape(self) -> list[Val]:
        """Global sizes."""
        return [self.size(d) for d in range(self.ndim)]

    def __repr__(self) -> str:
        return f"{self.tensor!r} loops {self._domain}"

    # ---- placing --------------------------------------------------------------------------------------------------------------------------

    def _record(self, call: str) -> None:
        self._fd._schedule_call(self, call)

    def set_device_mesh(self, mesh: Mesh) -> TensorView:
        """Places the tensor on a mesh: replicated, until loops are spread over its axes."""
        self._record(f".set_device_mesh({mesh!r})")
        self._mesh = mesh
        return self

    def set_placements(self, mesh: Mesh, placements: Sequence[Any]) -> TensorView:
        """torch's spelling: entry i belongs to dim i of the mesh (the last is mesh_x); of several Shards of one dim, earlier entries are major."""
        dims: list[list[Split]] = [[] for _ in range(self.ndim)]
        partial: dict[str, str] = {}
        if len(placements) != mesh.ndim:
            raise PlacementError(f"{self.name}: {len(placements)} placements for a mesh with {mesh.ndim} dims: one per dim of the mesh")
        for axis, entry in zip(mesh.names, placements, strict=True):
            if entry.is_shard():
                if not -self.ndim <= entry.dim < self.ndim:
                    raise PlacementDimError(f"{self.name}: {entry!r}, but the tensor has {self.ndim} dims: {self.tensor!r}")
                dims[entry.dim % self.ndim].append(Split(axis))
            elif entry.is_partial():
                partial[axis] = entry.reduce_op
        spelled = ", ".join(repr(p) for p in placements)
        placed = place(mesh, dims, partial)
        self._record(f".set_placements({mesh!r}, [{spelled}])")
        self._mesh, self._explicit = mesh, placed
        return self

    def axis(self, i: int) -> IterDomain:
        position = self._domain.index(i, f"{self.name}.axis")
        return IterDomain(self, position, self._domain.loops[position])

    def split(self, dim: int, factor: int, inner_split: bool = True) -> TensorView:
        """Replaces a loop by an outer and an inner one. `factor` is the inner's extent, or the outer's with `inner_split=False`."""
        self._domain.split(dim, factor, inner_split)
        self._record(f".split({dim}, {factor}, inner_split={inner_split})")
        return self

    def outer_split(self, dim: int, factor: int) -> TensorView:
        self._domain.split(dim, factor, False)
        self._record(f".outer_split({dim}, {factor})")
        return self

    def inner_split(self, dim: int, factor: int) -> TensorView:
        self._domain.split(dim, factor, True)
        self._record(f".inner_split({dim}, {factor})")
        return self

    def merge(self, axis_o: int, axis_i: int | None = None) -> TensorView:
        inner = axis_o + 1 if axis_i is None else axis_i
        self._domain.merge(axis_o, inner)
        self._record(f".merge({axis_o}, {inner})")
        return self

    def reorder(self, old2new: Mapping[int, int]) -> TensorView:
        self._domain.reorder(dict(old2new))
        self._record(f".reorder({dict(old2new)!r})")
        return self

    def get_loop_domain(self) -> list[IterDomain]:
        return [IterDomain(self, i, loop) for i, loop in enumerate(self._domain.loops)]

    def set_allocation_domain(self, ids: Sequence[IterDomain], new_contiguity: bool = True) -> TensorView:
        """Accepted and recorded: local tensors are dense in their loop order already."""
        self._record(".set_allocation_domain([" + ", ".join(f"{self.name}.axis({i._position})" for i in ids) + f"], {new_contiguity})")
        return self

    def placement(self) -> tuple[Placement, tuple[str, ...]] | None:
        """The placement that the user gave, and the mesh axes on reduced dims; None if the tensor has no mesh."""
        if self._mesh is None:
            spread = [loop for loop in self._domain.loops if over_mesh(loop.parallel)]
            if spread:
                raise PlacementError(
                    f"{self.name}: the loop {spread[0]} is spread over a mesh axis, but the tensor has no mesh; call set_device_mesh"
                )
            return None
        if self._explicit is not None:
            return self._explicit, ()
        return placement(self._domain, self._mesh, self.ndim, self.name)
