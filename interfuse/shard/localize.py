"""localize: Placed → Local. One rank's program: shapes become this rank's, every Move becomes slices and collectives.

Shapes and offsets are expressions in the rank's mesh coordinates, so the text is the same on all ranks. A collective works on dense tensors
along dim 0: the dim that changes is brought to the front and, where shards are uneven, padded to equal chunks; the pad is cut off by sizes.
All of that is ordinary nodes, which fuse with their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from interfuse.ir import sizes
from interfuse.ir.nodes import (
    AllGather,
    AllReduce,
    AllToAll,
    Const,
    Iota,
    Move,
    Node,
    Pad,
    Permute,
    Program,
    Random,
    ReduceScatter,
    Reshape,
    Scalar,
    ScalarCompute,
    SizeScalar,
    Slice,
    Tensor,
    operands,
)
from interfuse.ir.rewrite import with_operands
from interfuse.ir.sizes import Size
from interfuse.ops import elementwise, reduce
from interfuse.shard import reshard
from interfuse.shard.mesh import Mesh
from interfuse.shard.placed import Placed
from interfuse.shard.placement import Cut, Partial, Placement, States, coordinate, local_shape, local_start, states


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """`program` has local shapes; `placement` says how its inputs and outputs lie; `moved` are tensors that collectives or slices made;
    `gathered` lists what was made whole and why."""

    program: Program
    mesh: Mesh
    placement: Mapping[Tensor, Placement]
    moved: frozenset[Tensor]
    gathered: tuple[str, ...]


NOMINAL_SIZE = 1024


def localize(placed: Placed) -> Local:
    """Raises UnsupportedPlacement where a move cannot be planned."""
    return _Localizer(placed).run()


class _Localizer:
    def __init__(self, placed: Placed) -> None:
        self.placed, self.mesh = placed, placed.mesh
        self.nodes: list[Node] = []
        self.local: dict[Tensor, Tensor] = {}
        self.at: dict[tuple[Tensor, States], Tensor] = {}
        self.gathered: list[str] = []
        self.count = 0
        self.taken = {t.name for t in placed.program.tensors()}

    def run(self) -> Local:
        program, placement = self.placed.program, self.placed.placement
        for t in program.inputs:
            self.local[t] = Tensor(t.name, local_shape(t.shape, placement[t]), t.dtype)
        for node in program.nodes:
            if isinstance(node, Move):
                self.local[node.out] = self._move(node)
            else:
                self.local[node.out] = self._compute(node)
        inputs = tuple(self.local[t] for t in program.inputs)
        outputs = tuple(self.local[t] for t in program.outputs)
        aliases = tuple((self.local[s], self.local[t]) for s, t in program.aliases)
        where = {self.local[t].name: program.where.get(t.name, "") for t in program.tensors()}
        local = replace(program, inputs=inputs, nodes=tuple(self.nodes), outputs=outputs, where=where, aliases=aliases)
        return Local(
            local,
            self.mesh,
            {self.local[t]: placement[t] for t in (*program.inputs, *program.results())},
            frozenset(self.at.values()),
            tuple(self.gathered),
        )

    # ---- nodes that compute -----------------------------------------------------------------------------------------------------------------

    def _compute(self, node: Node) -> Tensor:
        out = Tensor(node.out.name, local_shape(node.out.shape, self.placed.placement[node.out]), node.out.dtype)
        local = with_operands(node, tuple(self.local[t] for t in operands(node)), out)
        if isinstance(local, Iota):
            splits = self.placed.placement[node.out].dims[0]
            local = replace(local, start=_shifted(local.start, local.step, local_start(node.out.shape[0], splits, self.mesh)))
        if isinstance(local, Random):
            splits_of = self.placed.placement[node.out].dims
            local = replace(local, starts=tuple(local_start(s, splits, self.mesh) for s, splits in zip(node.out.shape, splits_of, strict=True)))
        self.nodes.append(local)
        return out

    # ---- moves --------------------------------------------------------------------------------------------------------------------------------

    def _move(self, move: Move) -> Tensor:
        before, after = states(self.placed.placement[move.arg]), states(self.placed.placement[move.out])
        plan = reshard.route(before, after, _numbers(move.arg.shape), move.arg.dtype.itemsize, self.mesh.shape)
        here, tensor = before, self.local[move.arg]
        for step in plan.steps:
            there = here[: step.axis] + (step.after,) + here[step.axis + 1 :]
            key = (move.arg, there)
            if key not in self.at:
                self.at[key] = self._step(step, tensor, move.arg, here)
            tensor, here = self.at[key], there
        if any(s.kind == "all_gather" for s in plan.steps) and move.out not in self.placed.given and self.placed.placement[move.out].is_replicated:
            where = self.placed.program.where.get(move.arg.name, "")
            self.gathered.append(
                f"{move.arg.name} ({where or 'no line'}) is gathered whole ({self.placed.why[move.out]}): {plan.wire_bytes:.0f} bytes a rank"
            )
        return tensor

    def _step(self, step: reshard.Step, tensor: Tensor, of: Tensor, here: States) -> Tensor:
        axis, parts = self.mesh.names[step.axis], self.mesh.shape[step.axis]
        match step.kind:
            case "slice":
                assert isinstance(step.after, Cut)
                return self._slice(tensor, step.after, axis, of)
            case "all_gather":
                assert isinstance(step.before, Cut)
                return self._all_gather(tensor, step.before, axis, parts, of)
            case "reduce_scatter":
                assert isinstance(step.before, Partial) and isinstance(step.after, Cut)
                return self._reduce_scatter(tensor, step.before.op, step.after, axis, parts, of)
            case "all_reduce":
                assert isinstance(step.before, Partial)
                out = self._new(tensor.shape, tensor.dtype)
                return self._emit(AllReduce(out, tensor, reduce.ROWS[step.before.op], axis, of.name, sizes.product(tensor.shape)))
            case "all_to_all":
                assert isinstance(step.before, Cut) and isinstance(step.after, Cut)
                return self._all_to_all(tensor, step.before, step.after, axis, parts, of)

    def _slice(self, tensor: Tensor, cut: Cut, axis: str, of: Tensor) -> Tensor:
        n = of.shape[cut.dim]
        d = self.mesh.axis_size(axis)
        starts = [0 if i != cut.dim else sizes.chunk_lo(n, d, coordinate(axis), cut.grain) for i in range(tensor.ndim)]
        return self._resize(tensor, cut.dim, sizes.chunk_len(n, d, coordinate(axis), cut.grain), starts)

    def _all_gather(self, tensor: Tensor, cut: Cut, axis: str, parts: int, of: Tensor) -> Tensor:
        n, chunk = of.shape[cut.dim], sizes.chunk_size(of.shape[cut.dim], parts, cut.grain)
        payload = sizes.product(n if i == cut.dim else s for i, s in enumerate(tensor.shape))
        front = self._pad(self._to_front(tensor, cut.dim), {0: chunk})
        out = self._new((sizes.mul(parts, chunk), *front.shape[1:]), tensor.dtype)
        whole = self._emit(AllGather(out, front, axis, of.name, payload))
        return self._from_front(self._resize(whole, 0, n), cut.dim)

    def _reduce_scatter(self, tensor: Tensor, op: str, cut: Cut, axis: str, parts: int, of: Tensor) -> Tensor:
        n, chunk = tensor.shape[cut.dim], sizes.chunk_size(of.shape[cut.dim], parts, cut.grain)
        payload = sizes.product(tensor.shape)
        front = self._pad(self._to_front(tensor, cut.dim), {0: sizes.mul(parts, chunk)})
        out = self._new((chunk, *front.shape[1:]), tensor.dtype)
        mine = self._emit(ReduceScatter(out, front, reduce.ROWS[op], axis, of.name, payload))
        return self._from_front(self._resize(mine, 0, sizes.chunk_len(n, parts, coordinate(axis), cut.grain)), cut.dim)

    def _all_to_all(self, tensor: Tensor, old: Cut, new: Cut, axis: str, parts: int, of: Tensor) -> Tensor:
        """Block r of dim `new` goes to rank r; blocks of dim `old` arrive in the order of ranks."""
        n_old, n_new = of.shape[old.dim], tensor.shape[new.dim]
        c_old, c_new = sizes.chunk_size(n_old, parts, old.grain), sizes.chunk_size(n_new, parts, new.grain)
        padded = self._pad(tensor, {old.dim: c_old, new.dim: sizes.mul(parts, c_new)})
        front = self._to_front(padded, new.dim)
        rest = [i for i in range(tensor.ndim) if i != new.dim]
        packed = self._reshape(front, (parts, c_new, *front.shape[1:]))
        exchanged = self._emit(AllToAll(self._new(packed.shape, tensor.dtype), packed, axis, of.name, sizes.product(tensor.shape)))
        order: list[int] = []
        for i in range(tensor.ndim):
            order += [1] if i == new.dim else ([0] if i == old.dim else []) + [2 + rest.index(i)]
        spread = self._permute(exchanged, tuple(order))
        merged = [sizes.mul(parts, c_old) if i == old.dim else c_new if i == new.dim else s for i, s in enumerate(tensor.shape)]
        joined = self._reshape(spread, tuple(merged))
        mine = self._resize(joined, old.dim, n_old)
        return self._resize(mine, new.dim, sizes.chunk_len(n_new, parts, coordinate(axis), new.grain))

    # ---- small nodes; each gives its operand back where nothing changes ------------------------------------------------------------------------

    def _new(self, shape: tuple[Size, ...], dtype: object) -> Tensor:
        while f"t{self.count}" in self.taken:
            self.count += 1
        self.count += 1
        return Tensor(f"t{self.count - 1}", tuple(shape), dtype)  # type: ignore[arg-type]

    def _emit(self, node: Node) -> Tensor:
        self.nodes.append(node)
        return node.out

    def _resize(self, tensor: Tensor, dim: int, length: Size, starts: list[Size] | None = None) -> Tensor:
        """Elements `starts[dim]` … of a dim, `length` of them."""
        if tensor.shape[dim] == length:
            return tensor
        shape = tuple(length if i == dim else s for i, s in enumerate(tensor.shape))
        return self._emit(Slice(self._new(shape, tensor.dtype), tensor, tuple(starts or [0] * tensor.ndim)))

    def _pad(self, tensor: Tensor, to: dict[int, Size]) -> Tensor:
        """Zeros after the last element of dims that are shorter than `to`."""
        shape = tuple(to.get(i, s) for i, s in enumerate(tensor.shape))
        if shape == tensor.shape:
            return tensor
        zero = Const(False if tensor.dtype.value == "bool" else 0.0 if tensor.dtype.is_float else 0, tensor.dtype)
        return self._emit(Pad(self._new(shape, tensor.dtype), tensor, (0,) * tensor.ndim, zero))

    def _reshape(self, tensor: Tensor, shape: tuple[Size, ...]) -> Tensor:
        return tensor if shape == tensor.shape else self._emit(Reshape(self._new(shape, tensor.dtype), tensor))

    def _permute(self, tensor: Tensor, order: tuple[int, ...]) -> Tensor:
        if order == tuple(range(tensor.ndim)):
            return tensor
        return self._emit(Permute(self._new(tuple(tensor.shape[d] for d in order), tensor.dtype), tensor, order))

    def _to_front(self, tensor: Tensor, dim: int) -> Tensor:
        order = (dim, *(i for i in range(tensor.ndim) if i != dim))
        return self._permute(tensor, order)

    def _from_front(self, tensor: Tensor, dim: int) -> Tensor:
        order = list(range(1, tensor.ndim))
        order.insert(dim, 0)
        return self._permute(tensor, tuple(order))


def _shifted(start: Scalar, step: Scalar, by: Size) -> Scalar:
    """start + by * step."""
    if by == 0:
        return start
    offset: Scalar = SizeScalar(by)
    if start.dtype.is_float:
        offset = ScalarCompute(elementwise.CAST, (offset,), start.dtype)
    return ScalarCompute(elementwise.ADD, (start, ScalarCompute(elementwise.ROWS["mul"], (offset, step), start.dtype)), start.dtype)


def _numbers(shape: tuple[Size, ...]) -> tuple[int, ...]:
    """Sizes for costing: a size that is not known counts as nominal."""
    return tuple(s if isinstance(s, int) else sizes.evaluate(s, {n: NOMINAL_SIZE for n in sizes.symbols(s)}) for s in shape)
