"""Every row of the op table against PyTorch: values, types, broadcasting, dims of size 1 and 0, sizes that change, scalars; both ways to run."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from interfuse import DataType, FusionDefinition
from interfuse.errors import InterfuseError
from interfuse.ops.table import TABLE

FLOATS = [DataType.Float, DataType.Double, DataType.BFloat16, DataType.Half]
INTS = [DataType.Int32, DataType.Int]
ALL = [*FLOATS, *INTS, DataType.Bool]
HALVES = (DataType.BFloat16, DataType.Half)
WAYS = {"generated": (), "aten": ("codegen",)}
ways = pytest.mark.parametrize("disable", WAYS.values(), ids=WAYS.keys())

ARITHMETIC = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "neg")
FLOATING = ("exp", "log", "tanh", "sin", "cos", "sqrt", "rsqrt", "reciprocal", "sigmoid")
PLAIN = ("abs", "relu", "silu")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
POSITIVE = ("log", "sqrt", "rsqrt")


def values(shape: Sequence[int], dtype: DataType, seed: int = 0) -> Tensor:
    """Random values of both signs; no zeros among integers, so that they divide."""
    make = torch.Generator().manual_seed(seed + sum(shape))
    if dtype is DataType.Bool:
        return torch.rand(tuple(shape), generator=make) > 0.5
    if dtype.is_int:
        whole = torch.randint(1, 6, tuple(shape), generator=make)
        return torch.where(torch.rand(tuple(shape), generator=make) > 0.5, whole, -whole).to(dtype.torch)
    return (torch.randn(tuple(shape), generator=make) * 2).to(dtype.torch)


def close(got: Tensor, wanted: Tensor, what: object = "") -> None:
    """Same type and shape, and as near as another order of additions may come."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), (what, got.dtype, got.shape, wanted.dtype, wanted.shape)
    if not wanted.dtype.is_floating_point:
        assert torch.equal(got, wanted), (what, got, wanted)
        return
    relative = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[wanted.dtype]
    torch.testing.assert_close(got, wanted, rtol=relative, atol=relative, equal_nan=True, msg=lambda text: f"{what}\n{text}")


def program(build: Callable[..., Any], shapes: Sequence[Sequence[int]], dtypes: Sequence[DataType]) -> FusionDefinition:
    with FusionDefinition() as fd:
        result = build(fd, *[fd.define_tensor(list(shape), dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)])
        for out in result if isinstance(result, tuple) else (result,):
            fd.add_output(out)
    return fd


def check(
    build: Callable[..., Any], torch_function: Callable[..., Any], inputs: Sequence[Tensor], disable: Sequence[str], symbolic: bool = False
) -> None:
    """One program with sizes as they are, or with all but those of size 1 left open."""
    dtypes = [next(d for d in ALL if d.torch == x.dtype) for x in inputs]
    shapes = [[-1 if symbolic and n != 1 else n for n in x.shape] for x in inputs]
    outs = program(build, shapes, dtypes).execute(inputs, _disable_options=disable)
    wanted = torch_function(*inputs)
    for out, want in zip(outs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        close(out, want, (shapes, dtypes))


# ---- elementwise ---------------------------------------------------------------------------------------------------------------------------------


def op(name: str) -> Callable[..., Any]:
    return lambda fd, *args: getattr(fd.ops, name)(*args)


def plain_torch(name: str) -> Callable[..., Tensor]:
    """The function in the types of `fd.ops`: half operands are computed, and given, in float; halves stay only where the row says "promote"."""
    functions: dict[str, Callable[..., Tensor]] = {
        "silu": torch.nn.functional.silu,
        "div": lambda a, b: torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc"),
    }
    base = functions.get(name) or getattr(torch, name)
    wide = name in ARITHMETIC + FLOATING

    def run(*args: Tensor) -> Tensor:
        common = args[0].dtype if len(args) == 1 else torch.result_type(*args)
        if common in (torch.float16, torch.bfloat16) and wide:
            common = torch.float32
        if name in FLOATING and not common.is_floating_point:
            common = torch.float32
        if common in (torch.float16, torch.bfloat16):
            return base(*[a.float() for a in args]).to(torch.bool if name in COMPARE else common)
        return base(*[a.to(common) for a in args])

    return run


def legal(name: str, dtype: DataType) -> bool:
    if dtype is DataType.Bool:
        return name in ("eq", "ne", "maximum", "minimum", *FLOATING)
    return not (name == "silu" and dtype.is_int) and not (name == "pow" and dtype.is_int)


UNARY, BINARY = ("neg", *FLOATING, *PLAIN), tuple(n for n in (*ARITHMETIC, *COMPARE) if n != "neg")
CASES_1 = [(name, dtype) for name in UNARY for dtype in ALL if legal(name, dtype)]
CASES_2 = [(name, dtype) for name in BINARY for dtype in ALL if legal(name, dtype)]


@ways
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one(name: str, disable: tuple[str, ...]) -> None:
    """All types at once: one program, one kernel."""
    dtypes = [dtype for case, dtype in CASES_1 if case == name]
    inputs = [values((5, 37), dtype, seed=i) for i, dtype in enumerate(dtypes)]
    inputs = [x.abs() + (1 if x.is_floating_point() else 0) if name in POSITIVE and x.dtype != torch.bool else x for x in inputs]
    check(lambda fd, *xs: tuple(op(name)(fd, x) for x in xs), lambda *xs: tuple(plain_torch(name)(x) for x in xs), inputs, disable)


@ways
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_broadcast(name: str, disable: tuple[str, ...]) -> None:
    dtypes = [dtype for case, dtype in CASES_2 if case == name]
    inputs = [values(shape, dtype, seed=i) for i, dtype in enumerate(dtypes) for shape in ((3, 1, 9), (4, 9))]
    if name == "pow":
        inputs = [x.abs() if i % 2 == 0 else x for i, x in enumerate(inputs)]
    pairs = lambda xs: list(zip(xs[::2], xs[1::2], strict=True))  # noqa: E731
    check(
        lambda fd, *xs: tuple(op(name)(fd, a, b) for a, b in pairs(xs)),
        lambda *xs: tuple(plain_torch(name)(a, b) for a, b in pairs(xs)),
        inputs,
        disable,
    )


@ways
@pytest.mark.parametrize("name", ["add", "mul", "maximum", "lt", "div"])
def test_types_promote(name: str, disable: tuple[str, ...]) -> None:
    pairs = [
        p for p in itertools.combinations([DataType.Float, DataType.BFloat16, DataType.Half, DataType.Int, DataType.Int32], 2) if {*p} != {*HALVES}
    ]
    inputs = [values((6,), dtype, seed=i) for i, pair in enumerate(pairs) for dtype in pair]
    zipped = lambda xs: zip(xs[::2], xs[1::2], strict=True)  # noqa: E731
    check(
        lambda fd, *xs: tuple(op(name)(fd, a, b) for a, b in zipped(xs)),
        lambda *xs: tuple(plain_torch(name)(a, b) for a, b in zipped(xs)),
        inputs,
        disable,
    )


def test_two_kinds_of_halves_meet_in_float() -> None:
    a, b = values((4,), DataType.BFloat16), values((4,), DataType.Half, 1)
    check(op("add"), lambda x, y: x.float() + y.float(), [a, b], ())
    check(lambda fd, c, x, y: fd.ops.where(c, x, y), lambda c, x, y: torch.where(c, x.float(), y.float()), [values((4,), DataType.Bool), a, b], ())


@ways
def test_where_cast_set(disable: tuple[str, ...]) -> None:
    pairs = [values(shape, dtype, i) for i, dtype in enumerate(ALL) for shape in ((3, 4), (4,))]
    zipped = lambda xs: zip(xs[::2], xs[1::2], strict=True)  # noqa: E731
    check(
        lambda fd, c, *xs: tuple(o for a, b in zipped(xs) for o in (fd.ops.where(c, a, b), fd.ops.set(a))),
        lambda c, *xs: tuple(o for a, b in zipped(xs) for o in (torch.where(c, a, b), a)), [values((3, 1), DataType.Bool), *pairs], disable,
    )  # fmt: skip
    inputs = [values((4, 3), dtype, seed=i) for i, dtype in enumerate(ALL)]
    check(
        lambda fd, *xs: tuple(fd.ops.cast(x, dtype) for x in xs for dtype in ALL),
        lambda *xs: tuple(x.to(dtype.torch) for x in xs for dtype in ALL), inputs, disable,
    )  # fmt: skip


@ways
def test_special_values(disable: tuple[str, ...]) -> None:
    nan, inf = float("nan"), float("inf")
    x, y = torch.tensor([nan, 1.0, inf, -inf, -0.0, nan]), torch.tensor([1.0, nan, -inf, inf, 0.0, nan])
    for name in ("maximum", "minimum", "eq", "ne", "lt", "ge", "add", "mul", "div"):
        check(op(name), getattr(torch, name), [x, y], disable)
    for name in ("relu", "exp", "tanh", "sigmoid", "abs", "reciprocal", "sqrt"):
        check(op(name), getattr(torch, name), [x], disable)
    for name, f in (("max", torch.amax), ("min", torch.amin), ("sum", torch.sum)):
        check(lambda fd, t, n=name: getattr(fd.ops, n)(t, [0]), lambda t, g=f: g(t, 0), [torch.stack([x, y, x])], disable)


# ---- reductions ------------------------------------------------------------------------------------------------------------------------------------

REDUCE: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k),
    "prod": lambda x, d, k: _prod(x, d, k),
    "max": lambda x, d, k: x.amax(d, keepdim=k),
    "min": lambda x, d, k: x.amin(d, keepdim=k),
}


def _prod(x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    for d in sorted([d % x.ndim for d in dims], reverse=True):
        x = x.prod(d, keepdim=keepdim)
    return x


@ways
@pytest.mark.parametrize("name", REDUCE)
def test_reductions(name: str, disable: tuple[str, ...]) -> None:
    for dtype in ALL:
        x = values((3, 17, 4), dtype)
        if name == "prod" and dtype.is_float:
            x = x.sign() * (1 + x.abs() / 16)
        settings = [([0, -1], True), ([2], False)] + [([1], False), ([0, 1, 2], False)] * (dtype is DataType.Float)
        wide = x.double() if dtype.is_low_precision else x
        check(
            lambda fd, t, todo=settings: tuple(getattr(fd.ops, name)(t, dims, keepdim) for dims, keepdim in todo),
            lambda _, w=wide, t=x, todo=settings: tuple(_as_ours(name, REDUCE[name](w, dims, keepdim), t) for dims, keepdim in todo),
            [x],
            disable,
        )


def _as_ours(name: str, result: Tensor, x: Tensor) -> Tensor:
    return result.to(x.dtype) if x.is_floating_point() else result.to(torch.int64) if name in ("sum", "prod") else result


@ways
def test_reductions_of_everything_and_into_a_type(disable: tuple[str, ...]) -> None:
    x = values((5, 6), DataType.BFloat16)
    check(
        lambda fd, t: (fd.ops.sum(t), fd.ops.max(t), fd.ops.sum(t, 0, dtype=DataType.Float)),
        lambda t: (t.float().sum().bfloat16(), t.max(), t.float().sum(0)),
        [x],
        disable,
    )
    for dtype, correction, keepdim in itertools.product((DataType.Float, DataType.Double), (0, 1), (False, True)):
        check(
            lambda fd, t, c=correction, k=keepdim: fd.ops.var_mean(t, [0, 2], c, k),
            lambda t, c=correction, k=keepdim: torch.var_mean(t, [0, 2], correction=c, keepdim=k),
            [values((4, 5, 6), dtype)],
            disable,
        )


# ---- products --------------------------------------------------------------------------------------------------------------------------------------

MATMULS = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((1, 4), (4, 1)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
]


@ways
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_products(dtype: DataType, disable: tuple[str, ...]) -> None:
    """Integers, so that every sum is exact in every type."""
    whole = lambda shape, seed: values(shape, DataType.Int, seed).to(dtype.torch)  # noqa: E731
    for a, b in MATMULS:
        check(op("matmul"), torch.matmul, [whole(a, 1), whole(b, 2)], disable)
    for shape in ((3, 4), (4,), (2, 3, 4)):
        x, w, bias = whole(shape, 1), whole((5, 4), 2), whole((5,), 3)
        check(op("linear"), lambda x, w, b: x @ w.t() + b, [x, w, bias], disable)
        check(lambda fd, x, w: fd.ops.linear(x, w, None), lambda x, w: x @ w.t(), [x, w], disable)


# ---- shapes ----------------------------------------------------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "broadcast": (
        lambda fd, x: fd.ops.add(fd.ops.broadcast(x, [False, True, False]), fd.ops.broadcast(x, [True, False, False])),
        lambda x: x[:, None] + x[None],
        [(4, 4)],
    ),
    "broadcast_in_dim": (lambda fd, x: fd.ops.broadcast_in_dim(x, [3, 5, 4], [0, 2]), lambda x: x[:, None, :].expand(3, 5, 4), [(3, 4)]),
    "broadcast_in_dim of 1": (lambda fd, x: fd.ops.broadcast_in_dim(x, [2, 3, 4], [1, 2]), lambda x: x[None].expand(2, 3, 4), [(1, 4)]),
    "expand": (lambda fd, x: fd.ops.expand(x, [2, 3, -1]), lambda x: x.expand(2, 3, 4), [(1, 4)]),
    "reshape": (
        lambda fd, x: (fd.ops.reshape(x, [2, 3, 4]), fd.ops.reshape(x, [-1, 6]), fd.ops.reshape(x, [24]), fd.ops.reshape(x, [1, 6, 1, 4])),
        lambda x: (x.reshape(2, 3, 4), x.reshape(-1, 6), x.reshape(24), x.reshape(1, 6, 1, 4)),
        [(6, 4)],
    ),
    "reshape fused": (lambda fd, x: fd.ops.neg(fd.ops.reshape(fd.ops.add(x, x), [3, 8])), lambda x: -(x + x).reshape(3, 8), [(6, 4)]),
    "permute": (
        lambda fd, x: (fd.ops.permute(x, [2, 0, 1]), fd.ops.neg(fd.ops.permute(x, [0, -1, 1]))),
        lambda x: (x.permute(2, 0, 1), -x.permute(0, 2, 1)),
        [(3, 4, 5)],
    ),
    "squeeze": (lambda fd, x: fd.ops.squeeze(x, [0, -2]), lambda x: x.squeeze(-2).squeeze(0), [(1, 3, 1, 4)]),
    "slice": (lambda fd, x: fd.ops.slice(x, [1, 0], [4, 9]), lambda x: x[1:4, 0:9], [(5, 6)]),
    "slice of a permute": (
        lambda fd, x: fd.ops.neg(fd.ops.slice(fd.ops.permute(x, [1, 0]), [2, 1], [5, 4], [1, 1])),
        lambda x: -x.t()[2:5, 1:4],
        [(5, 6)],
    ),
    "cat": (lambda fd, x, y: (fd.ops.cat([x, y, x], 1), fd.ops.cat([x], 0)), lambda x, y: (torch.cat([x, y, x], 1), x), [(3, 2), (3, 4)]),
    "cat of one kernel": (
        lambda fd, x, y: fd.ops.relu(fd.ops.cat([fd.ops.neg(x), fd.ops.mul(y, y)], -2)),
        lambda x, y: torch.relu(torch.cat([-x, y * y], -2)),
        [(3, 2), (4, 2)],
    ),
    "pad": (
        lambda fd, x: (fd.ops.pad(x, [1, 2]), fd.ops.pad(x, [0, 1, 2, 0], 3.0), fd.ops.pad(x, [-1, 1])),
        lambda x: tuple(torch.nn.functional.pad(x, w, value=v) for w, v in (([1, 2], 0.0), ([0, 1, 2, 0], 3.0), ([-1, 1], 0.0))),
        [(3, 4)],
    ),
    "full": (
        lambda fd, x: (fd.ops.full([2, 3], 1.5, DataType.BFloat16), fd.ops.full([4], -7, DataType.Int32), fd.ops.set(x)),
        lambda x: (torch.full((2, 3), 1.5, dtype=torch.bfloat16), torch.full((4,), -7, dtype=torch.int32), x),
        [(2,)],
    ),
    "iota": (
        lambda fd, x: (
            fd.ops.iota(5),
            fd.ops.iota(4, 3, -2),
            fd.ops.iota(3, 0.5, 0.25, DataType.Float),
            fd.ops.iota(4, 1, 1, DataType.Int32),
            fd.ops.set(x),
        ),
        lambda x: (torch.arange(5), torch.arange(3, -5, -2), torch.tensor([0.5, 0.75, 1.0]), torch.arange(1, 5, dtype=torch.int32), x),
        [(2,)],
    ),
    "size": (lambda fd, x: fd.ops.div(x, fd.ops.size(x, -1)), lambda x: x / torch.tensor(float(x.shape[1])), [(3, 7)]),
    "shape": (lambda fd, x: fd.ops.full(fd.ops.shape(x), 2.0, DataType.Float), lambda x: torch.full(x.shape, 2.0), [(3, 7)]),
}


@ways
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, symbolic: bool, disable: tuple[str, ...]) -> None:
    build, torch_function, shapes = SHAPES[name]
    check(build, torch_function, [values(shape, DataType.Float, i) for i, shape in enumerate(shapes)], disable, symbolic)


@ways
def test_moves_of_every_type(disable: tuple[str, ...]) -> None:
    for dtype in ALL:
        x, y = values((3, 5), dtype), values((3, 2), dtype, 1)
        check(
            lambda fd, a, b: (fd.ops.cat([a, b], 1), fd.ops.pad(a, [1, 1]), fd.ops.permute(a, [1, 0]), fd.ops.slice(a, [0, 2], [3, 4])),
            lambda a, b: (torch.cat([a, b], 1), torch.nn.functional.pad(a, [1, 1]), a.t(), a[:, 2:4]),
            [x, y],
            disable,
        )


# ---- sizes -----------------------------------------------------------------------------------------------------------------------------------------


@ways
def test_one_definition_many_sizes(disable: tuple[str, ...]) -> None:
    """Symbolic sizes: large, small, one, none, and the first again; reductions of nothing give identities."""
    fd = program(
        lambda fd, x, y: (fd.ops.add(fd.ops.mul(x, x), y), fd.ops.sum(x, [0]), fd.ops.cat([x, x], 0), fd.ops.prod(x, [1])),
        [[-1, -1], [1, -1]],
        [DataType.Float] * 2,
    )
    for n, m in ((5, 300), (1, 1), (0, 3), (2, 0), (0, 0), (33, 2), (5, 300)):
        x, y = values((n, m), DataType.Float), values((1, m), DataType.Float, 1)
        outs = fd.execute([x, y], _disable_options=disable)
        for out, wanted in zip(outs, (x * x + y, x.sum(0), torch.cat([x, x], 0), x.prod(1)), strict=True):
            close(out, wanted, (n, m))


@ways
def test_extremes_of_nothing_are_identities(disable: tuple[str, ...]) -> None:
    fd = program(lambda fd, x: (fd.ops.max(x, [1]), fd.ops.min(x, [1])), [[-1, -1]], [DataType.Float])
    high, low = fd.execute([torch.empty(2, 0)], _disable_options=disable)
    assert high.tolist() == [float("-inf")] * 2 and low.tolist() == [float("inf")] * 2


@ways
def test_inputs_in_any_strides(disable: tuple[str, ...]) -> None:
    base = values((6, 8), DataType.Float)
    for x in (base.t(), base[::2, 1::3], base[:, :1].expand(6, 8), base[2:, 3:], base.flip(0)):
        check(lambda fd, t: (fd.ops.neg(t), fd.ops.sum(t, [1]), fd.ops.permute(t, [1, 0])), lambda t: (-t, t.sum(1), t.t()), [x], disable)
        check(lambda fd, t: fd.ops.matmul(t, fd.ops.permute(t, [1, 0])), lambda t: t @ t.t(), [x], disable)


# ---- scalars ---------------------------------------------------------------------------------------------------------------------------------------


@ways
def test_scalars(disable: tuple[str, ...]) -> None:
    """Numbers, constants, inputs of every kind, sizes, and arithmetic on them."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4])
        f, i, b = fd.define_scalar(dtype=DataType.Double), fd.define_scalar(dtype=DataType.Int), fd.define_scalar(dtype=DataType.Bool)
        k = fd.define_scalar(3)
        o = fd.ops
        for out in (
            o.add(x, 1.5), o.mul(2, x), o.sub(x, f), o.mul(o.add(f, i), x), o.where(o.lt(x, f), x, i), o.add(x, o.mul(x.size(0), k)),
            o.mul(x, b), o.full([i, k], f, DataType.Float), o.add(o.iota(i), o.neg(i)), o.pow(x, 2.0),
        ):  # fmt: skip
            fd.add_output(out)
    for n, fv, iv, bv in ((3, 0.25, 2, True), (5, -1.5, 4, False), (3, 0.25, 2, False), (1, 7.0, 0, True)):
        t = values((n, 4), DataType.Float, n)
        wanted = (
            t + 1.5,
            2 * t,
            t - fv,
            (fv + iv) * t,
            torch.where(t < fv, t, torch.tensor(float(iv))),
            t + n * 3,
            t * bv,
            torch.full((iv, 3), fv),
            torch.arange(iv) - iv,
            t**2.0,
        )
        for place, (out, want) in enumerate(zip(fd.execute([t, fv, iv, bv], _disable_options=disable), wanted, strict=True)):
            close(out, want, (place, n, fv, iv, bv))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_scalar_raises_a_tensor_by_kind_alone(dtype: DataType) -> None:
    x = values((4,), dtype)
    for scalar in (2, 2.5):
        out = program(lambda fd, t, s=scalar: fd.ops.mul(t, s), [[4]], [dtype]).execute([x])[0]
        wanted = (x.float() if dtype in HALVES else x) * scalar
        close(out, wanted, scalar)


# ---- the table -------------------------------------------------------------------------------------------------------------------------------------


def test_every_row_is_tested_somewhere() -> None:
    """By name: here, or in the file of its family."""
    here = {*UNARY, *BINARY, *REDUCE, "where", "cast", "set", "var_mean", "matmul", "linear"} | {name.split()[0] for name in SHAPES}
    elsewhere = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name)
    assert [name for name in TABLE if name not in here and not re.search(rf"\b{name}\b", elsewhere)] == []


def test_rows_that_refuse_types() -> None:
    for name, dtype in (("matmul", DataType.Bool), ("linear", DataType.Bool), ("var_mean", DataType.Int)):
        with pytest.raises(InterfuseError, match=name):
            program(
                lambda fd, *xs, n=name: getattr(fd.ops, n)(*xs),
                [[4, 4]] * (1 if name == "var_mean" else 2),
                [dtype] * (1 if name == "var_mean" else 2),
            )
    with pytest.raises(InterfuseError, match=r"where.*bool"):
        program(op("where"), [[4]] * 3, [DataType.Float] * 3)


def test_every_row_says_what_it_is() -> None:
    for row in TABLE.values():
        assert row.signature.startswith(row.name) and row.dims and row.runs_as and inspect.isfunction(row.build)
