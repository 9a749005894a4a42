"""Elementwise functions: one `ScalarOp` row each, with the promotion class that `fd.ops` gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from interfuse.ir.nodes import ScalarOp

_LEFT, _RIGHT, _BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


def _op(name: str, arity: int, torch_function: Callable[..., Any], cpp: str, triton: str = "", *, cpp_int: str = "", linear: tuple[frozenset[int], ...] = ()) -> ScalarOp:
    return ScalarOp(name, arity, torch_function, cpp, triton or cpp, cpp_int, linear)


def _truncated_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode=None if a.dtype.is_floating_point else "trunc")


def _where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(condition, a, b)


def _unary_torch(name: str) -> Callable[..., Any]:
    return getattr(torch, name)


ROWS: dict[str, ScalarOp] = {
    row.name: row
    for row in (
        _op("add", 2, torch.add, "{0} + {1}", linear=(_BOTH,)),
        _op("sub", 2, torch.sub, "{0} - {1}", linear=(_BOTH,)),
        _op("mul", 2, torch.mul, "{0} * {1}", linear=(_LEFT, _RIGHT)),
        _op("div", 2, _truncated_div, "{0} / {1}", cpp_int="if_idiv({0}, {1})", linear=(_LEFT,)),
        _op("neg", 1, torch.neg, "-{0}", linear=(_LEFT,)),
        _op("abs", 1, torch.abs, "if_abs({0})", "tl.abs({0})"),
        _op("exp", 1, torch.exp, "if_exp({0})", "tl.exp({0})"),
        _op("log", 1, torch.log, "if_log({0})", "tl.log({0})"),
        _op("tanh", 1, torch.tanh, "if_tanh({0})", "libdevice.tanh({0})"),
        _op("sin", 1, torch.sin, "if_sin({0})", "tl.sin({0})"),
        _op("cos", 1, torch.cos, "if_cos({0})", "tl.cos({0})"),
        _op("sqrt", 1, torch.sqrt, "if_sqrt({0})", "tl.sqrt_rn({0})"),
        _op("rsqrt", 1, torch.rsqrt, "if_rsqrt({0})", "tl.rsqrt({0})"),
        _op("reciprocal", 1, torch.reciprocal, "if_recip({0})", "1 / {0}"),
        _op("relu", 1, torch.relu, "if_relu({0})", "tl.maximum({0}, 0)"),
        _op("sigmoid", 1, torch.sigmoid, "if_sigmoid({0})", "tl.sigmoid({0})"),
        _op("silu", 1, torch.nn.functional.silu, "if_silu({0})", "{0} * tl.sigmoid({0})"),
        _op("pow", 2, torch.pow, "if_pow({0}, {1})", "libdevice.pow({0}, {1})"),
        _op("maximum", 2, torch.maximum, "if_max({0}, {1})", "tl.maximum({0}, {1}, tl.PropagateNan.ALL)"),
        _op("minimum", 2, torch.minimum, "if_min({0}, {1})", "tl.minimum({0}, {1}, tl.PropagateNan.ALL)"),
        _op("where", 3, _where, "if_where({0}, {1}, {2})", "tl.where({0}, {1}, {2})"),
        _op("eq", 2, torch.eq, "{0} == {1}"),
        _op("ne", 2, torch.ne, "{0} != {1}"),
        _op("lt", 2, torch.lt, "{0} < {1}"),
        _op("le", 2, torch.le, "{0} <= {1}"),
        _op("gt", 2, torch.gt, "{0} > {1}"),
        _op("ge", 2, torch.ge, "{0} >= {1}"),
        _op("cast", 1, lambda a: a, "{0}", linear=(_LEFT,)),
        _op("set", 1, lambda a: a, "{0}", linear=(_LEFT,)),
    )
}
CAST, SET, ADD = ROWS["cast"], ROWS["set"], ROWS["add"]
