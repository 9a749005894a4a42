"""The Triton functions that emitted kernels call, each with what it needs; a kernel's module holds only those that it uses.

Written for speed on float32: exp through the device's exp2, no branches but one, which a whole block takes together. Within 4 ulp where nothing
else is said.
"""

from __future__ import annotations

import re

_FUNCTIONS: dict[str, str] = {
    "_max_nan": """\
@triton.jit
def _max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_min_nan": """\
@triton.jit
def _min_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_mul": """\
@triton.jit
def _mul(a, b):
    return a * b
""",
    "_sigmoid": """\
@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
""",
    "_silu": """\
@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))
""",
    "_one_plus_tanh": """\
# 1 + tanh(x), as twice a sigmoid: no cancellation for negative x, and one exp2.
@triton.jit
def _one_plus_tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x))
""",
    "_one_minus_tanh_squared": """\
# 1 - tanh(x)**2 = 4 s (1 - s) with s = sigmoid(2 x).
@triton.jit
def _one_minus_tanh_squared(x):
    s = 1.0 / (1.0 + tl.exp(-2.0 * x))
    return 4.0 * (s - s * s)
""",
    "_tanh": """\
# Small |x|: Cephes' odd polynomial; else 1 - 2 / (e^2|x| + 1).
@triton.jit
def _tanh(x):
    a = tl.abs(x)
    z = x * x
    p = (((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z - 3.33332819422e-1
    large = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    return tl.where(a < 0.625, x + x * z * p, tl.where(x < 0, -large, large))
""",
    "_sin_near": """\
# |x| <= 1.6: odd polynomial of degree 9.
@triton.jit
def _sin_near(x):
    z = x * x
    p = ((2.6083159809786593e-06 * z - 0.00019810690719168633) * z + 0.00833307858556509) * z - 0.16666659712791443
    return tl.fma(p * z, x, x)
""",
    "_sin_reduced": """\
# |x| < 1e5: Cody and Waite's reduction by pi in three parts, then the polynomial; the parity of the multiple is the sign.
@triton.jit
def _sin_reduced(x):
    t = x * 0.31830988618379067 + 12582912.0
    k = t - 12582912.0
    r = tl.fma(k, -3.140625, x)
    r = tl.fma(k, -9.67502593994140625e-4, r)
    r = tl.fma(k, -1.509957990978376432e-7, r)
    s = _sin_near(r)
    sign = t.to(tl.int32, bitcast=True) << 31
    return (s.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)
""",
    "_sin": """\
@triton.jit
def _sin(x):
    if tl.max(tl.abs(x), axis=None) < 1e5:
        y = _sin_reduced(x)
    else:
        y = tl.sin(x)
    return y
""",
    "_cos_reduced": """\
# As _sin_reduced, by odd multiples of pi / 2.
@triton.jit
def _cos_reduced(x):
    t = (x * 0.31830988618379067 - 0.5) + 12582912.0
    q = (t - 12582912.0) * 2.0 + 1.0
    r = tl.fma(q, -1.5703125, x)
    r = tl.fma(q, -4.837512969970703e-4, r)
    r = tl.fma(q, -7.549789954891882e-8, r)
    s = _sin_near(r)
    sign = (t.to(tl.int32, bitcast=True) + 1) << 31
    return (s.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)
""",
    "_cos": """\
@triton.jit
def _cos(x):
    if tl.max(tl.abs(x), axis=None) < 1e5:
        y = _cos_reduced(x)
    else:
        y = tl.cos(x)
    return y
""",
    "_ipow": """\
# Integer powers by squaring; a negative exponent gives 0, or what ±1 give.
@triton.jit
def _ipow(base, exponent):
    result = base * 0 + 1
    square = base
    left = tl.where(exponent < 0, 0, exponent)
    for _ in tl.static_range(63):
        result = tl.where(left % 2 == 1, result * square, result)
        square = square * square
        left = left // 2
    odd = exponent % 2 != 0
    unit = tl.where(base == 1, 1, tl.where(base == -1, tl.where(odd, -1, 1), 0))
    return tl.where(exponent < 0, unit.to(result.dtype), result)
""",
    "_step_moments": """\
# One step of Welford's mean and sum of squared differences, lane by lane; `one` is 0 where there is no value.
@triton.jit
def _step_moments(mean, squares, count, v, one):
    new = count + one
    d = v - mean
    mean_new = mean + d * (one / tl.maximum(new, 1.0))
    return mean_new, squares + one * d * (v - mean_new), new
""",
    "_join_moments": """\
# Chan's rule: two sets of values with their means, squared differences and counts.
@triton.jit
def _join_moments(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    count = count_a + count_b
    d = mean_b - mean_a
    share = count_b / tl.maximum(count, 1.0)
    return mean_a + d * share, squares_a + squares_b + d * d * count_a * share, count
""",
}


def functions_for(text: str) -> str:
    """The definitions that `text` needs, in an order in which each stands before its callers."""
    needed: set[str] = set()
    todo = [text]
    while todo:
        words = set(re.findall(r"\b_[a-z_]+\b", todo.pop()))
        for name in words & _FUNCTIONS.keys() - needed:
            needed.add(name)
            todo.append(_FUNCTIONS[name])
    return "\n\n".join(body for name, body in _FUNCTIONS.items() if name in needed)
