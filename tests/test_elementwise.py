"""Elementwise ops and reductions: types, values, and what is refused; against plain PyTorch, through ATen and through compiled kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from interfuse import DataType, FusionDefinition, ParallelType
from interfuse.errors import ArgumentTypeError, DtypeError, InterfuseError, ShapeError
from interfuse.ir.dtypes import convert, from_torch, of_python
from interfuse.multidevice import DeviceMesh
from interfuse.ops import elementwise, promote
from interfuse.ops.table import TABLE

F32, F64, F16, BF16, C64, C128 = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128
I32, I64, BOOL = torch.int32, torch.int64, torch.bool
ALL = (BOOL, I32, I64, F16, BF16, F32, F64, C64, C128)
REAL = (BOOL, I32, I64, F16, BF16, F32, F64)


def run(define: Callable[..., Any], inputs: Sequence[Any], *, compiled: bool = False) -> list[Tensor]:
    """The outputs of a program of these inputs; numbers are scalar inputs."""
    with FusionDefinition() as fd:
        handles = [fd.from_pytorch(v) if isinstance(v, Tensor) else fd.define_scalar(of_python(v)) for v in inputs]
        made = define(fd.ops, *handles)
        for out in made if isinstance(made, (tuple, list)) else (made,):
            fd.add_output(out)
    return fd.execute(list(inputs), _disable_options=() if compiled else ("codegen",))


def sample(dtype: torch.dtype, shape: Sequence[int], seed: int, low: float = -4, high: float = 4) -> Tensor:
    """Numbers between the bounds; with an even seed every second element of a longer last dim, so that strides are not dense."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bounds = {} if dtype is BOOL else {"low": low, "high": high}
        made = torch.testing.make_tensor(tuple(shape), dtype=dtype, device="cpu", **bounds)
    return made if seed % 2 else torch.stack([made, made], -1)[..., 0]


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


# ---- types ----------------------------------------------------------------------------------------------------------------------------------


def test_members_are_true_and_spell_themselves() -> None:
    assert all(DataType) and str(DataType.Float8_e4m3fn) == "DataType.Float8_e4m3fn"
    for dtype in (*ALL, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2):
        assert from_torch(dtype).torch is dtype  # type: ignore[union-attr]
    assert DataType.Index.torch is I64 and from_torch(I64) is DataType.Int
    assert DataType.ComplexFloat.component is DataType.Float and DataType.Double.complex is DataType.ComplexDouble
    with pytest.raises(RuntimeError, match=r"DataType\.Null"):
        _ = DataType.Null.torch


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (-3.7, DataType.Int32, -3),
        (math.inf, DataType.Int, 2**63 - 1),
        (-math.inf, DataType.Int32, -(2**31)),
        (2**31, DataType.Int32, -(2**31)),
        (math.nan, DataType.Int, 0),
        (2 + 3j, DataType.Float, 2.0),
        (3j, DataType.Bool, True),
        (2, DataType.ComplexDouble, 2 + 0j),
    ],
)
def test_constants_change_type(value: Any, dtype: DataType, wanted: Any) -> None:
    result = convert(value, dtype)
    assert result == wanted and type(result) is type(wanted)


_OPERANDS = [torch.ones(shape, dtype=dtype) for shape in ((), (2,)) for dtype in ALL] + [True, 2, 0.5, 0.5j]


_FULL = {F16: F32, BF16: F32, torch.complex32: C64}


@pytest.mark.parametrize("a", _OPERANDS, ids=str)
def test_promotion_is_torchs_with_half_as_float(a: Any) -> None:
    """Ops that promote half give Float; `where` keeps half; there is no complex of halves."""
    for b in _OPERANDS:
        if not isinstance(a, Tensor) and not isinstance(b, Tensor):
            continue
        wanted = torch.result_type(a, b)
        with FusionDefinition() as fd:
            x, y = (fd.from_pytorch(v) if isinstance(v, Tensor) else fd.define_scalar(v) for v in (a, b))
            mask = fd.define_tensor([2], dtype=DataType.Bool)
            kinds = [f.tensor.dtype.torch for f in (fd.ops.add(x, y), fd.ops.where(mask, x, y), fd.ops.eq(x, y), fd.ops.truediv(x, y))]
            fd.add_output(fd.ops.set(mask))
        plain = _FULL.get(wanted, wanted)
        kept = C64 if wanted is torch.complex32 else wanted
        assert kinds == [plain, kept, BOOL, plain if plain.is_floating_point or plain.is_complex else F32], (a, b)


def test_scalars_of_a_type_count_as_that_type() -> None:
    def kind(value: Any, dtype: DataType | None) -> DataType:
        with FusionDefinition() as fd:
            mask = fd.define_tensor([2], dtype=DataType.Bool)
            scalars = [fd.define_scalar(value, dtype) if dtype else fd.define_scalar(value) for _ in range(2)]
            out = fd.ops.where(mask, *scalars)
            fd.add_output(out)
        return out.tensor.dtype

    assert [kind(3.0, None), kind(3, None), kind(3j, None)] == [DataType.Double, DataType.Int, DataType.ComplexDouble]
    for dtype, value in (("Float", 3.0), ("Double", 3.0), ("Int32", 3), ("ComplexFloat", 3j), ("ComplexDouble", 3j), ("Bool", True)):
        assert kind(value, DataType[dtype]) is DataType[dtype]
    assert kind(3.0, DataType.Half) is DataType.Float


@pytest.mark.parametrize(("a", "b"), list(itertools.product((DataType.Int, DataType.Int32, DataType.Bool, DataType.Index), repeat=2)))
def test_index_wins_among_integers(a: DataType, b: DataType) -> None:
    assert (promote.higher(a, b) is DataType.Index) == (DataType.Index in (a, b))


# ---- values through ATen ----------------------------------------------------------------------------------------------------------------------

_UNIT = {"acos", "asin", "atanh", "erfinv"}  # functions of [-1, 1]
_POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "acosh", "lgamma", "erfcinv"}
_BELOW = {"cast", "set", "imag", "real", "complex", "erfcinv", "logical_right_shift", "mod", "truediv", "div", "nextafter"}  # in tests of their own
_ONE = [name for name, op in elementwise.ROWS.items() if op.arity == 1 and name not in _BELOW]
_TWO = [name for name, op in elementwise.ROWS.items() if op.arity == 2 and name not in _BELOW]
_SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")
_INTEGERS_ONLY = {"gcd", *_SHIFTS}
_BITS = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"}
_NO_COMPLEX = {
    *("maximum", "minimum", "lt", "le", "gt", "ge", "fmod", "remainder", "atan2", "relu", "ceil", "floor", "round", "trunc", "frac", "sign"),
    *("isneginf", "isposinf", "signbit", "erf", "erfc", "erfinv", "exp2", "log10", "lgamma", "expm1"),
}
_NO_INTEGERS = {"silu", "frac"}
_NO_BOOL = {"sub", "neg", "pow", "fmod", "remainder", "relu", "silu", "sign", "ceil", "floor", "round", "trunc", "signbit", "abs"}


def accepts(name: str, dtype: torch.dtype) -> bool:
    """Whether ATen computes this op in this type on a CPU."""
    if name in _INTEGERS_ONLY:
        return dtype in (I32, I64)
    if name in _BITS:
        return dtype in (BOOL, I32, I64)
    if dtype is BOOL:
        return name not in _NO_BOOL | _NO_INTEGERS
    if dtype.is_complex:
        return name not in _NO_COMPLEX
    return dtype.is_floating_point or name not in _NO_INTEGERS


def expected(name: str, *args: Tensor) -> Tensor:
    """torch's own result, half types computed in float where the row promotes them."""
    function = torch.nn.functional.silu if name == "silu" else getattr(torch, name)
    rule = TABLE[name].dtype_rule
    if "half → f32" in rule:
        args = tuple(a.float() if a.dtype in (F16, BF16) else a for a in args)
    return function(*args)


@given(st.sampled_from(_ONE), st.sampled_from(ALL), st.sampled_from([(), (3,), (0, 2), (2, 1, 3)]), st.integers(0, 3))
def test_one_operand(name: str, dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> None:
    if not accepts(name, dtype):
        return
    low, high = (-1, 1) if name in _UNIT else (1, 9) if name in _POSITIVE else (-4, 4)
    x = sample(dtype, shape, seed, low, high)
    (out,) = run(lambda ops, a: getattr(ops, name)(a), [x])
    same(out, expected(name, x.contiguous()))


@given(st.sampled_from(_TWO), st.sampled_from(ALL), st.sampled_from([((3,), (3,)), ((2, 1), (3,)), ((), (2,)), ((0, 3), (1, 3))]), st.integers(0, 3))
def test_two_operands(name: str, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    if not accepts(name, dtype):
        return
    a, b = sample(dtype, shapes[0], seed), sample(dtype, shapes[1], seed + 1, 1, 5)
    (out,) = run(lambda ops, x, y: getattr(ops, name)(x, y), [a, b])
    same(out, expected(name, a.contiguous(), b.contiguous()))


def test_every_op_is_tried() -> None:
    """Each elementwise row is in one of the lists above or in a test below."""
    assert set(elementwise.ROWS) == {*_ONE, *_TWO, *_BELOW, "where", "lerp", "threshold", "addcmul"}


INTS = torch.tensor([7, -7, 7, -7, 0, 5, -(2**31), 2**31 - 1], dtype=I32)
BY = torch.tensor([2, 2, -2, -2, 3, 0, -1, 1], dtype=I32)


@pytest.mark.parametrize("compiled", [False, True])
def test_integers(compiled: bool) -> None:
    """C's division, shifts that leave the width, and nothing that traps."""
    a, b, shift = INTS, BY, torch.tensor([0, 1, 31, 31, 32, -1, 31, 40], dtype=I32)

    def define(ops: Any, x: Any, y: Any, s: Any) -> list[Any]:
        shifts = [getattr(ops, f)(x, s) for f in ("bitwise_left_shift", "bitwise_right_shift", "logical_right_shift")]
        return [ops.div(x, y), ops.mod(x, y), ops.fmod(x, y), ops.remainder(x, y), ops.gcd(x, y), *shifts, ops.truediv(x, y), ops.bitwise_not(x)]

    quotient, mod, fmod, remainder, gcd, left, right, logical, true, flipped = run(define, [a, b, shift], compiled=compiled)
    assert quotient.tolist() == [3, -3, -3, 3, 0, 0, -(2**31), 2**31 - 1]
    assert mod.tolist() == fmod.tolist() == [1, -1, 1, -1, 0, 0, 0, 0]
    assert remainder.tolist() == [1, 1, -1, -1, 0, 0, 0, 0]
    assert gcd[:6].tolist() == [1, 1, 1, 1, 3, 5]
    assert left.tolist() == [7, -14, -(2**31), -(2**31), 0, 0, 0, 0]
    assert right.tolist() == [7, -4, 0, -1, 0, 0, -1, 0]
    assert logical.tolist() == [7, 2147483644, 0, 1, 0, 0, 1, 0]
    assert flipped.tolist() == [~v for v in a.tolist()]
    same(true, torch.true_divide(a, b))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_several_operands(dtype: torch.dtype, compiled: bool) -> None:
    x, y, w = (sample(dtype, (4, 37), seed) for seed in (1, 3, 5))
    x[0, :4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])

    def define(ops: Any, a: Any, b: Any, c: Any, s: Any) -> list[Any]:
        clamped = [ops.clamp(a, -1.0, 1.0), ops.clamp(a, None, 0.5), ops.clamp(a, min=0.5), ops.clamp(a)]
        mixed = [ops.lerp(a, b, c), ops.lerp(a, b, s), ops.addcmul(a, b, c, s), ops.threshold(a, 0.25, 8.0), ops.nextafter(a, b)]
        return [*clamped, *mixed, ops.where(ops.gt(a, b), a, 2.0), ops.where(ops.isnan(a), b, a), ops.mod(b, c)]

    wanted = [
        *(x.clamp(-1, 1), x.clamp(max=0.5), x.clamp(min=0.5), x),
        *(torch.lerp(x, y, w), torch.lerp(x, y, 0.75), torch.addcmul(x, y, w, value=0.75)),
        *(torch.nn.functional.threshold(x, 0.25, 8.0), torch.nextafter(x, y)),
        *(torch.where(x > y, x, 2.0), torch.where(x.isnan(), y, x), torch.fmod(y, w)),
    ]
    for ours, theirs in zip(run(define, [x, y, w, 0.75], compiled=compiled), wanted, strict=True):
        same(ours, theirs)


def test_bounds_take_the_operands_type() -> None:
    x = torch.arange(-3, 4, dtype=I32)
    low, high, over = run(lambda ops, a: [ops.clamp(a, -1.5), ops.clamp(a, None, math.inf), ops.threshold(a, 0.5, 9)], [x])
    same(low, x.clamp(min=-1))
    same(high, x)
    same(over, torch.where(x <= 0, 9, x).to(I32))
    half = sample(F16, (5,), 1)
    same(run(lambda ops, a: ops.clamp(a, -0.5, 0.5), [half])[0], half.clamp(-0.5, 0.5))


@pytest.mark.parametrize("dtype", [C64, C128])
def test_complex_parts(dtype: torch.dtype) -> None:
    z = sample(dtype, (3, 4), 0)

    def define(ops: Any, a: Any) -> list[Any]:
        re, im = ops.real(a), ops.imag(a)
        return [re, im, ops.abs(a), ops.complex(re, im), ops.mul(a, 3 + 0.5j), ops.isreal(a), ops.cast(a, from_torch(z.real.dtype))]

    re, im, size, again, scaled, real, cast = run(define, [z])
    for ours, theirs in ((re, z.real), (im, z.imag), (size, z.abs()), (again, z), (scaled, z * (3 + 0.5j)), (real, z.isreal()), (cast, z.real)):
        same(ours, theirs.contiguous())


@pytest.mark.parametrize("diagonal", [0, 1, -2, 9, -9])
def test_triu(diagonal: int) -> None:
    for dtype, compiled in ((F32, diagonal == 1), (C64, False), (BOOL, False), (I32, False)):
        x = sample(dtype, (2, 3, 4), 0)
        same(run(lambda ops, a: ops.triu(a, diagonal), [x], compiled=compiled)[0], x.triu(diagonal))


# ---- values through compiled kernels: the very numbers that PyTorch gives ------------------------------------------------------------------------

_EXACT = "exp2 expm1 sinh cosh tan erfinv lgamma acosh asinh log1p atanh rsqrt reciprocal abs neg sign relu".split()
_EXACT += "ceil floor round trunc frac isfinite isinf isnan isneginf isposinf isreal signbit".split()
_NEAR = "exp sqrt log log2 log10 sin cos asin acos atan tanh erf erfc sigmoid silu erfcinv".split()
_EXACT_IN_DOUBLE = ("exp",)
_VALUES = (0.0, -0.0, 1.0, -1.0, 0.25, -0.999, 1.5, 2.5, -3.3, 87.5, 501.0, -501.0, 1001.2, -13437.7, 4988429.2, 1e20, -1e20)
_VALUES += (math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_kernels_equal_pytorch(dtype: torch.dtype) -> None:
    """Results can be large in `_EXACT`, so one ulp would show; `_NEAR` is small and may be an ulp or two off (MKL's sqrt is, ours is not)."""
    x = torch.cat([torch.tensor(_VALUES, dtype=dtype), sample(dtype, (996,), 1, -9, 9), sample(dtype, (200,), 1, -1, 1)])
    assert x.numel() % 16 == 0  # ATen leaves what does not fill two vectors to the C library
    names = _EXACT + _NEAR
    outs = run(lambda ops, a: [getattr(ops, name)(a) for name in names], [x], compiled=True)
    for name, ours in zip(names, outs, strict=True):
        theirs = torch.erfinv(1 - x) if name == "erfcinv" else expected(name, x)
        if name in _EXACT or (dtype is F64 and name in _EXACT_IN_DOUBLE):
            assert torch.equal(torch.nan_to_num(ours.to(F64), 7e77, 8e88, -8e88), torch.nan_to_num(theirs.to(F64), 7e77, 8e88, -8e88)), name
        else:
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(ours, theirs, rtol=8 * eps, atol=eps, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("dtype", [F32, F64])
def test_kernels_of_two_equal_pytorch(dtype: torch.dtype) -> None:
    a, b = (torch.tensor(v, dtype=dtype) for v in zip(*itertools.product(_VALUES, _VALUES), strict=True))
    names = "add sub mul div pow fmod remainder maximum minimum eq ne lt le gt ge logical_and logical_or nextafter".split()
    outs = run(lambda ops, x, y: [getattr(ops, name)(x, y) for name in names], [a, b], compiled=True)
    for name, ours in zip(names, outs, strict=True):
        wanted = expected(name, a, b)
        different = ~((ours == wanted) | (ours.isnan() & wanted.isnan()) if ours.dtype.is_floating_point else ours == wanted)
        assert not different.any(), f"{name}: {[(a[i].item(), b[i].item(), ours[i].item(), wanted[i].item()) for i in different.nonzero()[:4, 0]]}"


# ---- reductions -------------------------------------------------------------------------------------------------------------------------------


def test_reductions_take_a_type_in_every_place() -> None:
    x = sample(I32, (2, 3, 4), 0)
    kinds = {"Float": F32, "Int": I64, "Double": F64}
    for name, dtype in kinds.items():
        kind = DataType[name]
        outs = run(lambda ops, a, k=kind: [ops.sum(a, k), ops.sum(a, 1, False, k), ops.prod(a, [0, -1], True, dtype=k)], [x])
        product = x.to(dtype).prod(0, keepdim=True).prod(-1, keepdim=True)
        for ours, theirs in zip(outs, (x.sum(dtype=dtype), x.sum(1, dtype=dtype), product), strict=True):
            same(ours, theirs)
    same(run(lambda ops, a: ops.sum(a, dtype=DataType.Null), [x])[0], x.sum())
    z = sample(C64, (3, 4), 1)
    torch.testing.assert_close(run(lambda ops, a: ops.sum(a, [-1]), [z])[0], z.sum(-1))


@pytest.mark.parametrize("dtype", [F32, F64, C64, C128])
@pytest.mark.parametrize("correction", [0, 1])
def test_variance(dtype: torch.dtype, correction: int) -> None:
    x = sample(dtype, (3, 5, 2), 0)

    def define(ops: Any, a: Any) -> list[Any]:
        return [*ops.var_mean(a, [0, 2], correction, True), *ops.var_mean(a, None, correction), ops.var(a, [1], correction), *ops.welford(a, [1])]

    kept, kept_mean, var, mean, alone, center, squares, count = run(define, [x])
    wanted = [*torch.var_mean(x, (0, 2), correction=correction, keepdim=True), *torch.var_mean(x, correction=correction)]
    for ours, theirs in zip((kept, kept_mean, var, mean), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(alone, torch.var(x, 1, correction=correction))
    torch.testing.assert_close(center, x.mean(1))
    torch.testing.assert_close(squares / count, torch.var(x, 1, correction=0))
    assert count.dtype is I64 and count.tolist() == [[5, 5]] * 3


def test_half_variance_is_float() -> None:
    x = sample(F16, (4, 8), 1)
    (var,) = run(lambda ops, a: ops.var(a, [1]), [x])
    torch.testing.assert_close(var, torch.var(x.float(), 1))


# ---- partial sums pass through linear functions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lerp", "addcmul", "complex", "truediv"])
def test_partial_sums_pass(name: str) -> None:
    x, y, w = (sample(F32, (6, 4), seed) for seed in (1, 3, 5))
    mesh = DeviceMesh([0, 1])
    with FusionDefinition() as fd:
        a, b, c = (fd.from_pytorch(v) for v in (x, y, w))
        for t in (a, b, c):
            t.set_device_mesh(mesh)
        for t in (a, b):
            t.outer_split(0, 2)
            t.axis(0).parallelize(ParallelType.mesh_x)
        p, q = fd.ops.sum(a, 0), fd.ops.sum(b, 0)
        factor = fd.ops.sum(c, 0)
        made = {
            "lerp": lambda: fd.ops.lerp(p, q, 0.25),
            "addcmul": lambda: fd.ops.addcmul(p, factor, q, 0.5),
            "complex": lambda: fd.ops.complex(p, q),
            "truediv": lambda: fd.ops.truediv(p, factor),
        }[name]()
        fd.add_output(made)
    (out,) = fd.simulate([x, y, w])
    p, q, f = x.sum(0), y.sum(0), w.sum(0)
    wanted = {"lerp": torch.lerp(p, q, 0.25), "addcmul": torch.addcmul(p, f, q, value=0.5), "complex": torch.complex(p, q), "truediv": p / f}[name]
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    assert [(c.kind, c.count) for c in fd.explain([x, y, w]).collectives] == [("all_reduce", 1)]


# ---- what is refused ----------------------------------------------------------------------------------------------------------------------------

_REFUSED: list[tuple[str, type[InterfuseError], type[Exception], Callable[[Any, Any, Any], Any]]] = [
    ("imag of a float", DtypeError, RuntimeError, lambda ops, x, i: ops.imag(x)),
    ("complex of two types", DtypeError, RuntimeError, lambda ops, x, i: ops.complex(x, ops.cast(x, DataType.Double))),
    ("complex of a tensor and a number", DtypeError, RuntimeError, lambda ops, x, i: ops.complex(x, 1.0)),
    ("nextafter of integers", DtypeError, RuntimeError, lambda ops, x, i: ops.nextafter(i, i)),
    ("shift of floats", DtypeError, RuntimeError, lambda ops, x, i: ops.bitwise_left_shift(x, i)),
    ("gcd of floats", DtypeError, RuntimeError, lambda ops, x, i: ops.gcd(x, x)),
    ("bits of floats", DtypeError, RuntimeError, lambda ops, x, i: ops.bitwise_and(x, i)),
    ("where without bool", DtypeError, RuntimeError, lambda ops, x, i: ops.where(x, x, x)),
    ("clamp by a tensor", ArgumentTypeError, TypeError, lambda ops, x, i: ops.clamp(x, x)),
    ("addcmul by a tensor", ArgumentTypeError, TypeError, lambda ops, x, i: ops.addcmul(x, x, x, x)),
    ("one operand too many", ArgumentTypeError, TypeError, lambda ops, x, i: ops.abs(x, x)),
    ("one operand too few", ArgumentTypeError, TypeError, lambda ops, x, i: ops.add(x)),
    ("cast to a number", ArgumentTypeError, TypeError, lambda ops, x, i: ops.cast(x, 3)),
    ("triu of a vector", ShapeError, RuntimeError, lambda ops, x, i: ops.triu(ops.sum(x, 0))),
    ("max to a type", DtypeError, RuntimeError, lambda ops, x, i: ops.max(x, 0, False, DataType.Double)),
    ("max of complex", DtypeError, RuntimeError, lambda ops, x, i: ops.max(ops.complex(x, x))),
    ("sum over a float", ArgumentTypeError, TypeError, lambda ops, x, i: ops.sum(x, 1.0)),
    ("sum over nothing", ShapeError, RuntimeError, lambda ops, x, i: ops.sum(x, [])),
    ("sum over a dim twice", ShapeError, RuntimeError, lambda ops, x, i: ops.sum(x, [0, -2])),
    ("var_mean of half", DtypeError, RuntimeError, lambda ops, x, i: ops.var_mean(ops.cast(x, DataType.Half), [0])),
    ("var_mean of integers", DtypeError, RuntimeError, lambda ops, x, i: ops.var_mean(i, [0])),
    ("var_mean corrected below zero", ShapeError, RuntimeError, lambda ops, x, i: ops.var_mean(x, [0], -1)),
    ("var_mean over floats", ArgumentTypeError, TypeError, lambda ops, x, i: ops.var_mean(x, 2.0)),
]


@pytest.mark.parametrize(("what", "ours", "builtin", "call"), _REFUSED, ids=[r[0] for r in _REFUSED])
def test_refused(what: str, ours: type[InterfuseError], builtin: type[Exception], call: Callable[..., Any]) -> None:
    assert issubclass(ours, builtin)
    with FusionDefinition() as fd, pytest.raises(ours):
        call(fd.ops, fd.define_tensor([2, 3]), fd.define_tensor([2, 3], dtype=DataType.Int))


def test_scalars_alone_give_scalars() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([3]), fd.define_scalar(dtype=DataType.Double)
        bound = fd.ops.add(fd.ops.mul(fd.ops.exp(s), 2), fd.ops.where(fd.ops.gt(s, 0.0), s, -1.0))
        assert not bound.is_tensor()
        fd.add_output(fd.ops.mul(x, bound))
    x = torch.ones(3)
    same(fd.execute([x, 0.5])[0], x * (2 * math.exp(0.5) + 0.5))


def test_logical_not_takes_every_type() -> None:
    with FusionDefinition() as fd:
        x, b = fd.define_tensor([-1], dtype=DataType.Float), fd.define_tensor([-1], dtype=DataType.Bool)
        for t in (x, b):
            fd.add_output(fd.ops.logical_not(t))
    values, flags = torch.tensor([0.0, -0.0, 2.5, float("nan")]), torch.tensor([True, False, True, False])
    for disable in ((), ("codegen",)):
        outs = fd.execute([values, flags], _disable_options=disable)
        assert [o.tolist() for o in outs] == [torch.logical_not(values).tolist(), torch.logical_not(flags).tolist()]
