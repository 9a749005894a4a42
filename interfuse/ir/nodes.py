"""The nouns of all levels: tensors, scalars, the closed union of nodes, and programs.

A program of any level is a list of nodes in order, each giving one new tensor. Nodes are plain values without behaviour; rules live in the
op table and in passes, which match on this union. Shapes are *global* in Traced and Placed programs and *local* (one rank's, as expressions
in the rank's mesh coordinates) from Local on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Union

from interfuse.ir.dtypes import DataType
from interfuse.ir.sizes import Size

# ---- tensors and scalars --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of a program. Two tensors are the same only if they are the same object; names are unique within a program."""

    name: str
    shape: tuple[Size, ...]
    dtype: DataType

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype.short}[{', '.join(str(s) for s in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Const:
    """A number known when the program is written."""

    value: bool | int | float | complex
    dtype: DataType


@dataclass(frozen=True, slots=True)
class SizeScalar:
    """An integer made of sizes and integer scalar inputs; known when a call's sizes are."""

    value: Size
    dtype: DataType = DataType.Int


@dataclass(frozen=True, slots=True)
class ScalarInput:
    """A floating or boolean scalar given with every call; plans do not depend on its value."""

    name: str
    dtype: DataType


@dataclass(frozen=True, slots=True)
class ScalarCompute:
    """Arithmetic on scalars; the host program computes it once per call."""

    op: ScalarOp
    args: tuple[Scalar, ...]
    dtype: DataType


Scalar = Union[Const, SizeScalar, ScalarInput, ScalarCompute]
Operand = Union[Tensor, Scalar]


# ---- rows that nodes point at (the op table in interfuse.ops fills them) ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One elementwise function, the same for every element.

    `torch` computes it on tensors of the node's operand dtypes. `cpp` and `triton` are expressions with `{0}`, `{1}`, … for operands already
    held in the compute type; where a type needs another spelling, `cpp_int` has it. `linear_in` lists sets of operands: with all operands of a
    set partial sums and the others replicated, the result is the partial sum (`add`: {0, 1}; `mul`: {0} or {1}).
    """

    name: str
    arity: int
    torch: Callable[..., Any]
    cpp: str
    triton: str = ""
    cpp_int: str = ""
    linear_in: tuple[frozenset[int], ...] = ()

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str | tuple[Any, ...]:
        return (_row_by_name, (self.name,))


def _row_by_name(name: str) -> ScalarOp:
    raise LookupError(name)


@dataclass(frozen=True, slots=True)
class ReduceOp:
    """A reduction that is associative and commutative, with its identity. `partial` is its name as a placement (`+x`)."""

    name: str
    torch: Callable[..., Any]
    identity: Callable[[DataType], bool | int | float]
    cpp: str
    symbol: str
    triton: str = ""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class AtenOp:
    """An op that ATen computes whole. `torch(*args, **attrs)` takes tensors and numbers and gives one tensor, or a tuple of `results`.

    `dims(node)` gives the letters of its tensor operands' dims and of its result's, None for a dim that must be whole; letters that the result
    lacks are summed over. `linear_in` lists sets of tensor operands as `ScalarOp` does. With `strided` a result that nothing but the caller
    reads keeps the layout in which ATen gives it.
    """

    name: str
    torch: Callable[..., Any]
    dims: Callable[[Aten], tuple[tuple[tuple[int | None, ...], ...], tuple[int | None, ...]]]
    results: int = 1
    linear_in: tuple[frozenset[int], ...] = ()
    strided: bool = False

    def __repr__(self) -> str:
        return self.name


# ---- nodes of Traced and Placed programs; Local keeps them and adds collectives ------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Pointwise:
    """out[i] = op(args[i]); all tensor operands have the rank of `out`; a dim of size 1 is read for every index of a longer out dim.

    `cast` is the op whose result type is `out.dtype` whatever its operand's.
    """

    out: Tensor
    op: ScalarOp
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """out = reduction of `arg` over `dims`, which vanish. Accumulates in `out.dtype.compute` (half in float)."""

    out: Tensor
    op: ReduceOp
    arg: Tensor
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """A matrix product: sum over letters that `out` lacks. Letters per dim, one character each; accumulates in at least float.

    `linear` x[…, k] w[n, k] → "…k", "nk", "…n"; `matmul` with batch letters first. A letter whose dim is 1 in one operand only is not shared.
    """

    out: Tensor
    a: Tensor
    b: Tensor
    a_letters: str
    b_letters: str
    out_letters: str


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast:
    """out dim `dims[i]` is arg's dim i (equal, or 1 and repeated); the other out dims repeat the tensor."""

    out: Tensor
    arg: Tensor
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reshape:
    """The same elements in row-major order under another shape (also squeezes and unsqueezes)."""

    out: Tensor
    arg: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Permute:
    """out dim i is arg dim `dims[i]`."""

    out: Tensor
    arg: Tensor
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """out[i] = arg[i + starts]; sizes are `out.shape`, step 1."""

    out: Tensor
    arg: Tensor
    starts: tuple[Size, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pad:
    """out[i] = arg[i - before] where that index exists, else `value`; sizes are `out.shape`, `before` is non-negative."""

    out: Tensor
    arg: Tensor
    before: tuple[Size, ...]
    value: Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Cat:
    """Operands one after another along `dim`."""

    out: Tensor
    args: tuple[Tensor, ...]
    dim: int


@dataclass(frozen=True, slots=True, eq=False)
class Full:
    """Every element is `value`."""

    out: Tensor
    value: Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Iota:
    """out[i] = start + i * step, one dim."""

    out: Tensor
    start: Scalar
    step: Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Random:
    """Random numbers by *global* element index: Philox 4x32-10 under the key `seed`, at the counter (index, `offset`, `stream`).

    `kind` is uniform in [a, b), or normal with mean a and standard deviation b. `whole` is the global shape and `starts` the global index of
    this tensor's first element, so that a shard holds what the whole tensor holds there.
    """

    out: Tensor
    kind: str
    a: Scalar
    b: Scalar
    seed: Scalar
    offset: Scalar
    stream: int
    whole: tuple[Size, ...]
    starts: tuple[Size, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Aten:
    """Result number `result` of `op` on `args`, with keyword attributes (numbers, types, sizes). Nodes of equal calls are computed once."""

    out: Tensor
    op: AtenOp
    args: tuple[Operand, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    result: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """The same global tensor under another placement. Only in Placed programs, which hold both placements."""

    out: Tensor
    arg: Tensor


# ---- collectives, only from Local on: dense tensors whose dim 0 is cut or gathered, ranks in the team's order ---------------------------------
# `of` names the tensor of the global program that moves; `payload` counts the elements that it would be without padding: of the gathered tensor
# (all-gather), of the whole operand (reduce-scatter, all-reduce, all-to-all).


@dataclass(frozen=True, slots=True, eq=False)
class AllGather:
    """[c, …] on each of d ranks of mesh axis `axis` → [d*c, …] on all of them."""

    out: Tensor
    arg: Tensor
    axis: str
    of: str
    payload: Size


@dataclass(frozen=True, slots=True, eq=False)
class ReduceScatter:
    """[d*c, …] → [c, …], this rank's part of the reduction."""

    out: Tensor
    arg: Tensor
    op: ReduceOp
    axis: str
    of: str
    payload: Size


@dataclass(frozen=True, slots=True, eq=False)
class AllReduce:
    """Same shape; the reduction over the team, on every rank."""

    out: Tensor
    arg: Tensor
    op: ReduceOp
    axis: str
    of: str
    payload: Size


@dataclass(frozen=True, slots=True, eq=False)
class AllToAll:
    """[d, …] → [d, …]: part k of the result is part `my index` of rank k's operand."""

    out: Tensor
    arg: Tensor
    axis: str
    of: str
    payload: Size


Collective = Union[AllGather, ReduceScatter, AllReduce, AllToAll]
View = Union[Broadcast, Reshape, Permute, Slice]
Node = Union[
    Pointwise,
    Reduce,
    Contract,
    Broadcast,
    Reshape,
    Permute,
    Slice,
    Pad,
    Cat,
    Full,
    Iota,
    Random,
    Aten,
    Move,
    AllGather,
    ReduceScatter,
    AllReduce,
    AllToAll,
]


def operands(node: Node) -> tuple[Tensor, ...]:
    """The tensors that a node reads, in order."""
    match node:
        case Pointwise() | Aten():
            return tuple(a for a in node.args if isinstance(a, Tensor))
        case Contract():
            return (node.a, node.b)
        case Cat():
            return node.args
        case Full() | Iota() | Random():
            return ()
        case _:
            return (node.arg,)


def node_scalars(node: Node) -> tuple[Scalar, ...]:
    """The scalars that a node reads, in order."""
    match node:
        case Pointwise() | Aten():
            return tuple(a for a in node.args if not isinstance(a, Tensor))
        case Pad() | Full():
            return (node.value,)
        case Iota():
            return (node.start, node.step)
        case Random():
            return (node.a, node.b, node.seed, node.offset)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class Requirement:
    """Two sizes that must turn out equal when they are known, and the error to raise if they do not."""

    a: Size
    b: Size
    message: str
    error: type[Exception]


# ---- programs -------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Inputs in call order (tensors; scalars are listed apart), nodes in order of execution, outputs in return order.

    `scalars` are the scalar inputs in call order as (position among all inputs, name, dtype); integer ones appear in sizes as symbols of that
    name. `equal` lists what sizes must satisfy when they are known. `where` maps a tensor's name to the
    user's source line. `computed` are sizes that follow from arithmetic on scalars, in order: a symbol's name and its scalar. `aliases` are
    pairs of a tensor and the input into whose memory it is written once everything else has run; an output that is such a tensor is returned
    as that memory.
    """

    inputs: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Tensor, ...]
    scalars: tuple[tuple[int, str, DataType], ...] = ()
    equal: tuple[Requirement, ...] = ()
    where: dict[str, str] = field(default_factory=dict)
    computed: tuple[tuple[str, Scalar], ...] = ()
    aliases: tuple[tuple[Tensor, Tensor], ...] = ()

    def results(self) -> tuple[Tensor, ...]:
        """Everything that a call leaves behind: what is returned and what is written into inputs."""
        return tuple(dict.fromkeys((*self.outputs, *(source for source, _ in self.aliases))))

    def producers(self) -> dict[Tensor, Node]:
        return {node.out: node for node in self.nodes}

    def consumers(self) -> dict[Tensor, list[Node]]:
        """Readers of every tensor, in order; a node that reads one twice is listed once."""
        readers: dict[Tensor, list[Node]] = {t: [] for t in self.tensors()}
        for node in self.nodes:
            for operand in dict.fromkeys(operands(node)):
                readers[operand].append(node)
        return readers

    def tensors(self) -> Iterator[Tensor]:
        yield from self.inputs
        for node in self.nodes:
            yield node.out
