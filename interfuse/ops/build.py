"""How ops write nodes: the builder that every row's `build` function is given, and the shape rules that several rows share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from interfuse.errors import ArgumentTypeError, DimOutOfRange, DtypeError, ReshapeCountError, ShapeError, ShapesDoNotBroadcast
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType, convert
from interfuse.ir.nodes import Broadcast, Const, Node, Operand, Pointwise, Scalar, ScalarCompute, ScalarInput, ScalarOp, SizeScalar, Tensor
from interfuse.ir.sizes import Size
from interfuse.ops import promote
from interfuse.ops.elementwise import CAST
from interfuse.ops.promote import Rule


class Builder(Protocol):
    """Receives nodes in order; a definition is one, and so is every pass that rewrites programs."""

    def new(self, shape: Iterable[Size], dtype: DataType) -> Tensor:
        """A tensor with a fresh name."""

    def emit(self, node: Node) -> Tensor:
        """Appends a node and gives its result."""

    def require_equal(self, a: Size, b: Size, message: str, error: type[ShapeError] = ShapeError) -> None:
        """Notes that two sizes must turn out equal when they are known; `error` is raised if they do not."""

    def size_symbol(self, scalar: Scalar) -> Size:
        """A size that is computed from scalars when they are known, rounded towards zero."""

    def random_stream(self) -> int:
        """A number for every random op of the program, from 0."""


def dims_text(shape: Sequence[Size]) -> str:
    return "[" + ", ".join(str(s) for s in shape) + "]"


def wrap_dim(dim: int, ndim: int, what: str) -> int:
    """A dim index counted from the front."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise ArgumentTypeError(f"{what}: a dim is an int, not {dim!r}")
    if not -ndim <= dim < ndim:
        raise DimOutOfRange(f"{what}: dim {dim} of a tensor with {ndim} dims; dims run from {-ndim} to {ndim - 1}")
    return dim % ndim


def join(b: Builder, a: Size, c: Size, what: str) -> Size:
    """The size of an out dim whose operands have sizes `a` and `c`; size 1 repeats, and so does a computed size that turns out to be 1."""
    if a == 1 or c == 1:
        return c if a == 1 else a
    if a != c and (sizes.may_be_one(a) or sizes.may_be_one(c)):
        repeated = sizes.joined(a, c)
        b.require_equal(repeated, sizes.joined(c, a), f"{what}: sizes {a} and {c} are neither equal nor 1", ShapesDoNotBroadcast)
        return repeated
    equal = sizes.known_equal(a, c)
    if equal is False:
        raise ShapesDoNotBroadcast(f"{what}: sizes {a} and {c} are neither equal nor 1")
    if equal is None:
        b.require_equal(
            a,
            c,
            f"{what}: sizes {a} and {c} must be equal (a symbolic size never broadcasts; declare the dim as 1 if it should)",
            ShapesDoNotBroadcast,
        )
    return c if isinstance(c, int) else a


def broadcast_shapes(b: Builder, what: str, shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    ndim = max(len(s) for s in shapes)
    result: list[Size] = [1] * ndim
    for shape in shapes:
        for i, size in enumerate(shape, start=ndim - len(shape)):
            try:
                result[i] = join(b, result[i], size, what)
            except ShapesDoNotBroadcast:
                listed = ", ".join(dims_text(s) for s in shapes)
                raise ShapesDoNotBroadcast(
                    f"{what}: shapes {listed} do not broadcast: dim {i} of the result would be {result[i]} and {size}"
                ) from None
    return tuple(result)


def with_rank(b: Builder, tensor: Tensor, ndim: int) -> Tensor:
    """The tensor with dims of size 1 in front."""
    extra = ndim - tensor.ndim
    if not extra:
        return tensor
    out = b.new((1,) * extra + tensor.shape, tensor.dtype)
    return b.emit(Broadcast(out, tensor, tuple(range(extra, ndim))))


def cast(b: Builder, operand: Operand, dtype: DataType) -> Operand:
    """The operand as `dtype`; constants and sizes are retyped, other scalars are cast by the host program."""
    if not isinstance(operand, Tensor):
        return scalar_cast(operand, dtype)
    return operand if operand.dtype is dtype else b.emit(Pointwise(b.new(operand.shape, dtype), CAST, (operand,)))


def scalar_cast(scalar: Scalar, dtype: DataType) -> Scalar:
    if scalar.dtype is dtype:
        return scalar
    match scalar:
        case Const():
            return Const(convert(scalar.value, dtype), dtype)
        case SizeScalar() if dtype in (DataType.Int, DataType.Index):
            return SizeScalar(scalar.value, dtype)
        case _:
            return ScalarCompute(CAST, (scalar,), dtype)


def pointwise(b: Builder, op: ScalarOp, rule: Rule, args: Sequence[Operand], *, fixed: int = 0, result: DataType | None = None) -> Operand:
    """One elementwise op; the first `fixed` operands keep their type (the condition of `where`); `result` is its type where the rule does not
    say it. All scalars in: a scalar out."""
    dtype = promote.compute_type(rule, args[fixed:])
    typed = list(args[:fixed]) + [cast(b, a, dtype) for a in args[fixed:]]
    result = result or promote.result_type(rule, dtype)
    tensors = [a for a in typed if isinstance(a, Tensor)]
    if not tensors:
        return scalar_op(op, args, typed, result)
    shape = broadcast_shapes(b, op.name, [t.shape for t in tensors])
    aligned = tuple(with_rank(b, a, len(shape)) if isinstance(a, Tensor) else a for a in typed)
    return b.emit(Pointwise(b.new(shape, result), op, aligned))


def scalar_op(op: ScalarOp, args: Sequence[Operand], typed: Sequence[Operand], dtype: DataType) -> Scalar:
    """Integer arithmetic stays in sizes, so that it can steer shapes; the rest is computed by the host program."""
    exact = {"add": sizes.add, "sub": sizes.sub, "mul": sizes.mul, "div": sizes.floordiv, "maximum": sizes.maximum, "minimum": sizes.minimum}
    values = [size_of(a) for a in args]
    if op.name in exact and all(v is not None for v in values):
        return SizeScalar(exact[op.name](*values))  # type: ignore[operator]
    return ScalarCompute(op, tuple(a for a in typed if not isinstance(a, Tensor)), dtype)


def fold(scalar: Scalar) -> Scalar:
    """A constant where nothing but constants goes into a scalar."""
    match scalar:
        case SizeScalar(value=int(value)):
            return Const(value, scalar.dtype)
        case ScalarCompute():
            args = [fold(a) for a in scalar.args]
            if all(isinstance(a, Const) for a in args):
                values = [torch.tensor(a.value, dtype=a.dtype.torch) for a in args if isinstance(a, Const)]
                return Const(scalar.op.torch(*values).to(scalar.dtype.torch).item(), scalar.dtype)
    return scalar


def size_of(operand: Operand | int) -> Size | None:
    """The size that an integer scalar is, or None."""
    if isinstance(operand, bool):
        return None
    if isinstance(operand, int | sizes.Expr):
        return operand
    if isinstance(operand, SizeScalar):
        return operand.value
    if isinstance(operand, Const) and operand.dtype.is_int:
        assert not isinstance(operand.value, complex)
        return int(operand.value)
    if isinstance(operand, ScalarCompute) and operand.op is CAST and operand.dtype.is_int:
        return size_of(operand.args[0])
    return None


def as_size(b: Builder, value: object, what: str) -> Size:
    """A size from a Python int or a scalar of the program."""
    size = size_of(value)  # type: ignore[arg-type]
    if size is not None:
        return size
    if isinstance(value, Const | ScalarInput | ScalarCompute) and not value.dtype.is_complex:
        return b.size_symbol(value)
    if isinstance(value, Const | ScalarInput | ScalarCompute):
        raise DtypeError(f"{what}: a size is not {value.dtype.short}")
    raise ArgumentTypeError(f"{what}: a size is an int or a scalar of the program, not {value!r}")


def resolve_reshape(b: Builder, old: tuple[Size, ...], new: Sequence[Size]) -> tuple[Size, ...]:
    """The new shape with its one -1 worked out; checks that the number of elements stays."""
    holes = [i for i, s in enumerate(new) if s == -1]
    if len(holes) > 1:
        raise ReshapeCountError(f"reshape to {dims_text(new)}: only one size may be -1")
    bad = [s for s in new if isinstance(s, int) and s < -1]
    if bad:
        raise ShapeError(f"reshape to {dims_text(new)}: {bad[0]} is not a size")
    total, known = sizes.product(old), sizes.product(s for s in new if s != -1)
    result = tuple(sizes.floordiv(total, known) if s == -1 and known != 0 else (0 if s == -1 else s) for s in new)
    count = sizes.product(result)
    equal = sizes.known_equal(total, count)
    message = f"reshape of {dims_text(old)} ({total} elements) to {dims_text(new)} ({count} elements)"
    if equal is False:
        raise ReshapeCountError(message)
    if equal is None:
        b.require_equal(total, count, message, ReshapeCountError)
    return result
