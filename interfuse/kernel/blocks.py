"""The Tiled form for devices whose programs work on blocks: the values of `nodes`, with loop variables that are whole blocks of indices.

A program is one or more launches. A launch's body is a list of statements run once per program `g` of the grid. A `Span` makes a loop's index a
block along one axis of the tile; a value that is computed from it is a block too, and values of different spans broadcast. Loads and stores
leave out what lies beyond a span's end. Reductions are over one axis of the tile, in one statement, or lane by lane over the steps of a `For` first.
"""

from __future__ import annotations

from dataclasses import dataclass

from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import ReduceOp, Scalar, Tensor
from interfuse.ir.sizes import Size
from interfuse.kernel.nodes import Buffer, Let, LetIndex, Store, Value, mask_text, value_text


@dataclass(frozen=True, slots=True)
class Span:
    """`var` is first + 0 … length − 1, a power of two, along `axis` of a tile of `rank` axes; indices from `end` on are left out.

    `ragged` is False where every block is known to be full.
    """

    var: str
    first: Size
    length: int
    end: Size
    axis: int
    rank: int
    ragged: bool = True


@dataclass(frozen=True, slots=True)
class Lanes:
    """name = a tile of `shape` that holds one number in every lane, of `dtype.compute`."""

    name: str
    value: bool | int | float
    shape: tuple[int, ...]
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Accumulate:
    """name = op(name, value), lane by lane; lanes of `spans` that lie beyond the end stay as they are."""

    name: str
    op: ReduceOp
    value: Value
    spans: tuple[str, ...]
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Collapse:
    """name = reduction of `value` over one axis of a tile of `shape`, in `dtype`; lanes of `spans` beyond the end count as the identity."""

    name: str
    op: ReduceOp
    value: Value
    axis: int
    shape: tuple[int, ...]
    spans: tuple[str, ...]
    dtype: DataType


@dataclass(frozen=True, slots=True)
class OnlineSoftmax:
    """One step of max and sum(exp(value − max)): `top` is that of all blocks so far, `total` has lanes.

    One exponential per element and one per block; with a maximum per lane it would be two per element, more than a device has time for.
    """

    top: str
    total: str
    value: Value
    axis: int
    rank: int
    spans: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CloseSoftmax:
    """Joins the lanes of `total`: `top_result` and `total_result` over one axis of the tile."""

    top: str
    total: str
    top_result: str
    total_result: str
    axis: int
    rank: int


@dataclass(frozen=True, slots=True)
class OnlineMoments:
    """One step of Welford's mean and sum of squared differences, lane by lane, into `mean`, `squares` and the lanes' `count`."""

    mean: str
    squares: str
    count: str
    value: Value
    spans: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CloseMoments:
    """Joins the lanes: `sum_result` is the sum of all values, `squares_result` that of squared differences from their mean."""

    mean: str
    squares: str
    count: str
    sum_result: str
    squares_result: str
    axis: int
    rank: int


@dataclass(frozen=True, slots=True)
class For:
    """for var in range(first, end, step), with the loads of `stages` steps in flight."""

    var: str
    first: Size
    end: Size
    step: Size
    stages: int
    body: tuple[BlockStatement, ...]


BlockStatement = Let | LetIndex | Store | Span | Lanes | Accumulate | Collapse | OnlineSoftmax | CloseSoftmax | OnlineMoments | CloseMoments | For


@dataclass(frozen=True, slots=True)
class BlockLaunch:
    """One launch: `grid` programs of `warps` warps. `operands` are the tensors behind `buffers`; sizes are named as in `size_args`.

    `wide`: indices need 64 bits. `products` of sizes are extents of loops, which a compiler knows more about when they are arguments of their own.
    """

    name: str
    template: str
    buffers: tuple[Buffer, ...]
    operands: tuple[Tensor, ...]
    scalar_args: tuple[Scalar, ...]
    size_args: tuple[Size, ...]
    grid: Size
    warps: int
    wide: bool
    products: tuple[Size, ...]
    body: tuple[BlockStatement, ...]


@dataclass(frozen=True, slots=True)
class BlockKernel:
    """The launches of one kernel segment, in order. Called like a `TileKernel`: `tensors`, then scalars, then sizes; `scratch` is its own memory."""

    template: str
    tensors: tuple[Tensor, ...]
    scratch: tuple[Tensor, ...]
    launches: tuple[BlockLaunch, ...]
    target: str

    @property
    def scalar_args(self) -> tuple[Scalar, ...]:
        return tuple(dict.fromkeys(s for launch in self.launches for s in launch.scalar_args))

    @property
    def size_args(self) -> tuple[Size, ...]:
        made = [n for launch in self.launches for n in launch.size_args] + [n for t in self.scratch for n in t.shape]
        return tuple(dict.fromkeys(n for n in made if n != 1))

    def __str__(self) -> str:
        return "\n".join(_launch_text(launch) for launch in self.launches)


# ---- printing -------------------------------------------------------------------------------------------------------------------------------


def _launch_text(launch: BlockLaunch) -> str:
    arguments = [f"{b.name}: {b.dtype.short}" for b in launch.buffers]
    arguments += [f"c{i}: {s.dtype.short}" for i, s in enumerate(launch.scalar_args)] + [f"n{i}" for i in range(len(launch.size_args))]
    lines = [f"kernel {launch.name}({', '.join(arguments)})", f"  for g in grid {sizes.to_text(launch.grid)}, {launch.warps} warps:"]
    _print_body(launch.body, 2, lines)
    return "\n".join(lines)


def _print_body(body: tuple[BlockStatement, ...], depth: int, lines: list[str]) -> None:
    for statement in body:
        if isinstance(statement, For):
            step = sizes.to_text(statement.step)
            lines.append(f"{'  ' * depth}for {statement.var} in range({sizes.to_text(statement.first)}, {sizes.to_text(statement.end)}) by {step}:")
            _print_body(statement.body, depth + 1, lines)
        else:
            lines.append("  " * depth + _statement_text(statement))


def _statement_text(s: BlockStatement) -> str:
    match s:
        case Let():
            return f"{s.name} = {value_text(s.value)}"
        case LetIndex():
            return f"{s.name} = {sizes.to_text(s.index)}"
        case Store():
            return f"store {s.buffer}[{sizes.to_text(s.index)}] = {value_text(s.value)}"
        case Span():
            below = f" below {sizes.to_text(s.end)}" if s.ragged else ""
            return f"span {s.var} = {sizes.to_text(s.first)} + [0, {s.length}) along axis {s.axis}{below}"
        case Lanes():
            return f"{s.name} = {s.value!r} in {list(s.shape)}"
        case Accumulate():
            return f"{s.name} = {s.op.name}({s.name}, {value_text(s.value)})"
        case Collapse():
            return f"{s.name} = {s.op.name} of {value_text(s.value)} over axis {s.axis}"
        case OnlineSoftmax():
            return f"{s.top}, {s.total} = online max, sum of exp of {value_text(s.value)}"
        case CloseSoftmax():
            return f"{s.top_result}, {s.total_result} = {s.top}, {s.total} over axis {s.axis}"
        case OnlineMoments():
            return f"{s.mean}, {s.squares}, {s.count} = moments with {value_text(s.value)}"
        case CloseMoments():
            return f"{s.sum_result}, {s.squares_result} = {s.mean}, {s.squares}, {s.count} over axis {s.axis}"
        case _:
            raise TypeError(s)


__all__ = ["BlockKernel", "BlockLaunch", "BlockStatement", "mask_text"]
