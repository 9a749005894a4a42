"""Elementwise functions: one `ScalarOp` row each, with the promotion class that `fd.ops` gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from interfuse.ir.nodes import ScalarOp

_LEFT, _RIGHT, _BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


def _op(
    name: str,
    arity: int,
    torch_function: Callable[..., Any],
    cpp: str,
    triton: str = "",
    *,
    cpp_int: str = "",
    linear: tuple[frozenset[int], ...] = (),
) -> ScalarOp:
    return ScalarOp(name, arity, torch_function, cpp, triton or cpp, cpp_int, linear)


def _guarded(divide: Callable[..., torch.Tensor], floating: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Integer division as kernels do it: what the processor traps on, or ATen raises for, has a value: x over 0 gives 0, x over -1 wraps."""

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype.is_floating_point or a.dtype.is_complex:
            return floating(a, b)
        safe = torch.where((b == 0) | (b == -1), torch.ones_like(b), b)
        minus_one = torch.neg(a) if divide is _quotient else torch.zeros_like(a)
        result = torch.where(b == -1, minus_one, divide(a, safe))
        return torch.where(b == 0, torch.zeros_like(result), result)

    return run


def _quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _sub(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.logical_xor(a, b) if a.dtype is torch.bool else torch.sub(a, b)


def _neg(a: torch.Tensor) -> torch.Tensor:
    return a if a.dtype is torch.bool else torch.neg(a)


def _of_floats(floating: Callable[..., torch.Tensor], other: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that ATen has for floating types alone; integers are whole, finite and a number already."""
    return lambda a: floating(a) if a.dtype.is_floating_point or a.dtype.is_complex else other(a)


def _itself(a: torch.Tensor) -> torch.Tensor:
    return a


def _no(a: torch.Tensor) -> torch.Tensor:
    return torch.zeros(a.shape, dtype=torch.bool, device=a.device)


def _shift_right_logical(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Zeros come in at the top; a shift by the width or more (or by a negative number) gives 0."""
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    amount = torch.where(inside, b, torch.zeros_like(b))
    ones_below = torch.where(amount == 0, torch.full_like(amount, -1), torch.bitwise_left_shift(torch.ones_like(amount), bits - amount) - 1)
    return torch.where(inside, torch.bitwise_right_shift(a, amount) & ones_below, torch.zeros_like(a))


def _addcmul(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(a, b, c, value=value.item())


def _threshold(a: torch.Tensor, bound: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.where(a <= bound, value, a)


def _real(a: torch.Tensor) -> torch.Tensor:
    return torch.real(a) if a.dtype.is_complex else a


def _abs(a: torch.Tensor) -> torch.Tensor:
    return a if a.dtype is torch.bool else torch.abs(a)


def _op1(name: str, cpp: str, triton: str = "", *, torch_function: Callable[..., Any] | None = None, **more: Any) -> ScalarOp:
    """A function of one operand that torch has under the same name."""
    return _op(name, 1, torch_function or getattr(torch, name), cpp, triton, **more)


_LIBDEVICE = "acos acosh asin asinh atan atanh cosh exp2 expm1 erfc erfinv erfcinv lgamma log10 log1p sinh tan tanh".split()
_LANGUAGE = "exp log log2 sin cos erf sigmoid".split()
_TORCH_FUNCTIONS = {"erfcinv": lambda a: torch.erfinv(1 - a)}

_UNARY = (
    *(_op1(name, f"if_{name}({{0}})", f"libdevice.{name}({{0}})", torch_function=_TORCH_FUNCTIONS.get(name)) for name in _LIBDEVICE),
    *(_op1(name, f"if_{name}({{0}})", f"tl.{name}({{0}})") for name in _LANGUAGE),
    _op1("sqrt", "if_sqrt({0})", "tl.sqrt_rn({0})"),
    _op1("rsqrt", "if_rsqrt({0})", "tl.rsqrt({0})"),
    _op1("reciprocal", "if_recip({0})", "1 / {0}"),
    _op1("neg", "-{0}", torch_function=_neg, linear=(_LEFT,)),
    _op1("abs", "if_abs({0})", "tl.abs({0})", torch_function=_abs),
    _op1("sign", "if_sign({0})", "({0} > 0).to({0}.dtype) - ({0} < 0).to({0}.dtype)"),
    _op1("relu", "if_relu({0})", "tl.maximum({0}, 0)"),
    _op1("silu", "if_silu({0})", "{0} * tl.sigmoid({0})", torch_function=torch.nn.functional.silu),
    _op1("ceil", "if_ceil({0})", "tl.ceil({0})", cpp_int="{0}"),
    _op1("floor", "if_floor({0})", "tl.floor({0})", cpp_int="{0}"),
    _op1("round", "if_round({0})", "libdevice.rint({0})", cpp_int="{0}", torch_function=_of_floats(torch.round, _itself)),
    _op1("trunc", "if_trunc({0})", "libdevice.trunc({0})", cpp_int="{0}"),
    _op1("frac", "{0} - if_trunc({0})", "{0} - libdevice.trunc({0})", cpp_int="{0} - {0}", torch_function=_of_floats(torch.frac, torch.zeros_like)),
    _op1("isfinite", "if_abs({0}) < __builtin_inf()", 'tl.abs({0}) < float("inf")', cpp_int="true"),
    _op1("isinf", "if_abs({0}) == __builtin_inf()", 'tl.abs({0}) == float("inf")', cpp_int="false"),
    _op1("isnan", "{0} != {0}", cpp_int="false"),
    _op1("isneginf", "{0} == -__builtin_inf()", '{0} == float("-inf")', cpp_int="false", torch_function=_of_floats(torch.isneginf, _no)),
    _op1("isposinf", "{0} == __builtin_inf()", '{0} == float("inf")', cpp_int="false", torch_function=_of_floats(torch.isposinf, _no)),
    _op1("isreal", "{0} == {0} || true", "{0} == {0} or True", cpp_int="true"),
    _op1("signbit", "__builtin_signbit({0}) != 0", "libdevice.signbit({0}) != 0", cpp_int="{0} < 0"),
    _op1("logical_not", "!{0}", "{0} == 0"),
    _op1("bitwise_not", "if_bitnot({0})", "~{0}"),
    _op1("real", "{0}", torch_function=_real, linear=(_LEFT,)),
    _op1("imag", "", linear=(_LEFT,)),
)

_BINARY = (
    _op("add", 2, torch.add, "{0} + {1}", linear=(_BOTH,)),
    _op("sub", 2, _sub, "{0} - {1}", linear=(_BOTH,)),
    _op("mul", 2, torch.mul, "{0} * {1}", linear=(_LEFT, _RIGHT)),
    _op("div", 2, _guarded(_quotient, torch.div), "{0} / {1}", cpp_int="if_idiv({0}, {1})", linear=(_LEFT,)),
    _op("truediv", 2, torch.true_divide, "{0} / {1}", linear=(_LEFT,)),
    _op("mod", 2, _guarded(torch.fmod, torch.fmod), "if_fmod({0}, {1})", "libdevice.fmod({0}, {1})", cpp_int="if_irem({0}, {1})"),
    _op("fmod", 2, _guarded(torch.fmod, torch.fmod), "if_fmod({0}, {1})", "libdevice.fmod({0}, {1})", cpp_int="if_irem({0}, {1})"),
    _op("remainder", 2, _guarded(torch.remainder, torch.remainder), "if_remainder({0}, {1})", "", cpp_int="if_iremainder({0}, {1})"),
    _op("pow", 2, torch.pow, "if_pow({0}, {1})", "libdevice.pow({0}, {1})"),
    _op("atan2", 2, torch.atan2, "if_atan2({0}, {1})", "libdevice.atan2({0}, {1})"),
    _op("nextafter", 2, torch.nextafter, "if_nextafter({0}, {1})", "libdevice.nextafter({0}, {1})"),
    _op("maximum", 2, torch.maximum, "if_max({0}, {1})", "tl.maximum({0}, {1}, tl.PropagateNan.ALL)"),
    _op("minimum", 2, torch.minimum, "if_min({0}, {1})", "tl.minimum({0}, {1}, tl.PropagateNan.ALL)"),
    _op("eq", 2, torch.eq, "{0} == {1}"),
    _op("ne", 2, torch.ne, "{0} != {1}"),
    _op("lt", 2, torch.lt, "{0} < {1}"),
    _op("le", 2, torch.le, "{0} <= {1}"),
    _op("gt", 2, torch.gt, "{0} > {1}"),
    _op("ge", 2, torch.ge, "{0} >= {1}"),
    _op("logical_and", 2, torch.logical_and, "{0} && {1}", "{0} & {1}"),
    _op("logical_or", 2, torch.logical_or, "{0} || {1}", "{0} | {1}"),
    _op("bitwise_and", 2, torch.bitwise_and, "{0} & {1}"),
    _op("bitwise_or", 2, torch.bitwise_or, "{0} | {1}"),
    _op("bitwise_xor", 2, torch.bitwise_xor, "{0} ^ {1}"),
    _op("bitwise_left_shift", 2, torch.bitwise_left_shift, "if_shl({0}, {1})", ""),
    _op("bitwise_right_shift", 2, torch.bitwise_right_shift, "if_shr({0}, {1})", ""),
    _op("logical_right_shift", 2, _shift_right_logical, "if_lshr({0}, {1})", ""),
    _op("gcd", 2, torch.gcd, "if_gcd({0}, {1})", ""),
    _op("complex", 2, torch.complex, "", linear=(_BOTH,)),
)

_MORE = (
    _op("where", 3, torch.where, "if_where({0}, {1}, {2})", "tl.where({0}, {1}, {2})"),
    _op("lerp", 3, torch.lerp, "if_lerp({0}, {1}, {2})", "{0} + {2} * ({1} - {0})", linear=(_BOTH,)),
    _op("threshold", 3, _threshold, "if_where({0} <= {1}, {2}, {0})", "tl.where({0} <= {1}, {2}, {0})"),
    _op("addcmul", 4, _addcmul, "if_addcmul({0}, {1}, {2}, {3})", "{0} + {3} * {1} * {2}", linear=(_BOTH, frozenset({0, 2}))),
    _op("cast", 1, _itself, "{0}", linear=(_LEFT,)),
    _op("set", 1, _itself, "{0}", linear=(_LEFT,)),
    _op("segment_set", 1, _itself, "{0}", linear=(_LEFT,)),
)

ROWS: dict[str, ScalarOp] = {row.name: row for row in (*_UNARY, *_BINARY, *_MORE)}
CAST, SET, ADD, SEGMENT_SET = ROWS["cast"], ROWS["set"], ROWS["add"], ROWS["segment_set"]
