"""The Tiled form: one kernel as loops over tiles, in scalar statements that every emitter can print.

A kernel is generic in sizes: every size is an argument `n0, n1, …`, a loop variable is a symbol of `ir.sizes`, and an address is a `Size` over
both. Buffers are dense and flat. Values are scalars in a compute type (half types are held in float); a local `Array` is what lives per lane
(accumulators, staged blocks, kept rows). Loops come in three kinds: `grid` (independent iterations, the outermost loop), `serial`, and `lanes`
(independent iterations that become vector registers or a block).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import ReduceOp, Scalar, ScalarOp
from interfuse.ir.sizes import Size

# ---- values ---------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Within:
    """0 <= index < bound."""

    index: Size
    bound: Size

    def __str__(self) -> str:
        return f"0 <= {self.index} < {self.bound}"


Mask = tuple[Within, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """buffer[index], held in `dtype.compute`; zero where a condition of `mask` fails, and then nothing is read."""

    buffer: str
    index: Size
    mask: Mask
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of a compute type."""

    value: bool | int | float
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Argument:
    """A scalar argument of the kernel, by its name there."""

    name: str
    dtype: DataType


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index as a 64-bit integer value."""

    index: Size
    dtype: DataType = DataType.Int


@dataclass(frozen=True, slots=True)
class Ref:
    """A value named by a `Let` or a `Fold`."""

    name: str
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Element:
    """array[index]."""

    array: str
    index: Size
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Compute:
    """op(args), all args of one compute type; the result is of `dtype`."""

    op: ScalarOp
    args: tuple[Value, ...]
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Convert:
    """A value in another type; a half type rounds to nearest even and stays held in float."""

    arg: Value
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Select:
    """`then` where the mask holds, else `other`."""

    mask: Mask
    then: Value
    other: Value
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Merge:
    """One step of a reduction, in `dtype`."""

    op: ReduceOp
    accumulator: Value
    value: Value
    dtype: DataType


Value = Load | Number | Argument | IndexValue | Ref | Element | Compute | Convert | Select | Merge

# ---- statements -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Let:
    """Names a value, in its compute type."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class LetIndex:
    """Names an index; `name` may then stand in sizes."""

    name: str
    index: Size


@dataclass(frozen=True, slots=True)
class Array:
    """A local array of `count` elements, uninitialised. `where`: on the stack, on the heap of a thread, or one for the whole kernel."""

    name: str
    dtype: DataType
    count: Size
    where: Literal["stack", "thread", "kernel"] = "stack"


@dataclass(frozen=True, slots=True)
class Write:
    """array[index] = value."""

    array: str
    index: Size
    value: Value


@dataclass(frozen=True, slots=True)
class Fold:
    """name = the reduction of the first `count` elements of `array`, a power of two, halves onto halves; destroys the array."""

    name: str
    op: ReduceOp
    array: str
    count: int
    dtype: DataType


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value, converted to the buffer's type."""

    buffer: str
    index: Size
    value: Value


@dataclass(frozen=True, slots=True)
class Loop:
    """for var in range(lo, hi, step). A grid loop says how many scalar steps its iterations are in all (`work`), so that small ones run serially."""

    kind: Literal["grid", "serial", "lanes"]
    var: str
    lo: Size
    hi: Size
    body: tuple[Statement, ...]
    step: int = 1
    work: Size = 0


@dataclass(frozen=True, slots=True)
class Branch:
    """`then` where few < at_most and work >= at_least, else `other`: the same result, spread over more iterations of the grid."""

    few: Size
    at_most: int
    work: Size
    at_least: int
    then: tuple[Statement, ...]
    other: tuple[Statement, ...]


Statement = Let | LetIndex | Array | Write | Fold | Store | Loop | Branch


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor argument: its name in the kernel and the type of its elements in memory."""

    name: str
    dtype: DataType
    is_output: bool


@dataclass(frozen=True, slots=True)
class TileKernel:
    """A kernel's text in tile form. Called with buffers, then `scalar_args` (double or int64), then the values of `size_args` (int64).

    Two kernels that print alike are the same code: neither names of tensors nor numbers of sizes are in `body`.
    """

    template: str
    buffers: tuple[Buffer, ...]
    scalar_args: tuple[Scalar, ...]
    size_args: tuple[Size, ...]
    body: tuple[Statement, ...]

    @property
    def signature(self) -> str:
        """One letter per argument: p a pointer, d a double, i a 64-bit integer."""
        return "p" * len(self.buffers) + "".join("d" if s.dtype.is_float else "i" for s in self.scalar_args) + "i" * len(self.size_args)

    def scalar_names(self) -> tuple[str, ...]:
        return tuple(f"c{i}" for i in range(len(self.scalar_args)))

    def size_names(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(len(self.size_args)))

    def __str__(self) -> str:
        return to_text(self)


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, outer before inner."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from walk(statement.body)
        elif isinstance(statement, Branch):
            yield from walk(statement.then)
            yield from walk(statement.other)


def parts(value: Value) -> tuple[Value, ...]:
    """The values that a value is computed from."""
    match value:
        case Compute():
            return value.args
        case Convert():
            return (value.arg,)
        case Select():
            return (value.then, value.other)
        case Merge():
            return (value.accumulator, value.value)
        case _:
            return ()


# ---- printing -------------------------------------------------------------------------------------------------------------------------------


def to_text(kernel: TileKernel) -> str:
    """Loops over tiles, one statement a line."""
    arguments = [f"{b.name}: {b.dtype.short}" for b in kernel.buffers]
    arguments += [f"{name}: {s.dtype.short}" for name, s in zip(kernel.scalar_names(), kernel.scalar_args, strict=True)]
    lines = [f"kernel {kernel.template}({', '.join(arguments + list(kernel.size_names()))})"]
    _print_body(kernel.body, 1, lines)
    return "\n".join(lines)


def _print_body(body: tuple[Statement, ...], depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for statement in body:
        match statement:
            case Loop():
                step = f" by {statement.step}" if statement.step != 1 else ""
                lo = "" if statement.lo == 0 else f"{sizes.to_text(statement.lo)}, "
                lines.append(f"{pad}{statement.kind} {statement.var} in range({lo}{sizes.to_text(statement.hi)}){step}:")
                _print_body(statement.body, depth + 1, lines)
            case Branch():
                few, work = sizes.to_text(statement.few), sizes.to_text(statement.work)
                lines.append(f"{pad}if {few} < {statement.at_most} and {work} >= {statement.at_least}:")
                _print_body(statement.then, depth + 1, lines)
                lines.append(f"{pad}else:")
                _print_body(statement.other, depth + 1, lines)
            case _:
                lines.append(pad + _statement_text(statement))


def _statement_text(statement: Statement) -> str:
    match statement:
        case Let():
            return f"{statement.name} = {value_text(statement.value)}"
        case LetIndex():
            return f"{statement.name} = {sizes.to_text(statement.index)}"
        case Array():
            return f"{statement.name}: {statement.dtype.short}[{sizes.to_text(statement.count)}] per {statement.where}"
        case Write():
            return f"{statement.array}[{sizes.to_text(statement.index)}] = {value_text(statement.value)}"
        case Fold():
            return f"{statement.name} = {statement.op.name} of {statement.array}[:{statement.count}]"
        case Store():
            return f"store {statement.buffer}[{sizes.to_text(statement.index)}] = {value_text(statement.value)}"
        case _:
            raise TypeError(statement)


def mask_text(mask: Mask) -> str:
    return " and ".join(map(str, mask))


def value_text(value: Value) -> str:
    match value:
        case Load():
            guard = f" if {mask_text(value.mask)}" if value.mask else ""
            return f"load {value.buffer}[{sizes.to_text(value.index)}] as {value.dtype.compute.short}{guard}"
        case Number():
            return repr(value.value)
        case Argument() | Ref():
            return value.name
        case IndexValue():
            return f"index({sizes.to_text(value.index)})"
        case Element():
            return f"{value.array}[{sizes.to_text(value.index)}]"
        case Compute():
            return f"{value.op.name}({', '.join(map(value_text, value.args))})"
        case Convert():
            return f"{value.dtype.short}({value_text(value.arg)})"
        case Select():
            return f"{value_text(value.then)} if {mask_text(value.mask)} else {value_text(value.other)}"
        case Merge():
            return f"{value.op.name}({value_text(value.accumulator)}, {value_text(value.value)})"
