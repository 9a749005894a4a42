"""The C++ functions that emitted kernels call, each with what it needs; a kernel's text holds only those that it uses.

`exp` and `tanh` of floats are written out: short polynomials that the compiler vectorises in place, within 1 ulp. Other transcendental functions
go to SLEEF or to MKL's vector math, which torch's own library exports; they are declared as vector functions (`simd`), and their vector forms are
defined here under the names that the x86-64 vector ABI gives them, so that a loop over lanes calls eight at a time. Scalar calls go through the same
code, so a result does not depend on where in a loop its element falls. Without MKL (`IF_MKL` undefined) SLEEF serves, without SLEEF (`IF_SLEEF`
undefined, or no AVX2) the C library.

Which library: the one that ATen uses, wherever results can be large, so that they equal PyTorch's bit for bit. Where ATen uses MKL and results are
small (log, sin, erf, …), SLEEF, which is faster in blocks of eight and at most 1 ulp away. C's own asinh and acosh are ATen's too; SLEEF's
overflow from 1e19 on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_FLOAT_EXP = """\
// 2^n * p(r) with r = x - n ln 2, |r| <= ln 2 / 2; the polynomial is SLEEF's. Exact to 1 ulp, denormal results included.
static inline float if_exp(float x) {
    const float c = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
    const float n = __builtin_rintf(c * 1.44269504088896341f);
    float r = __builtin_fmaf(n, -0.693145751953125f, c);
    r = __builtin_fmaf(n, -1.428606765330187045e-06f, r);
    float p = 0.000198527617612853646f;
    p = __builtin_fmaf(p, r, 0.00139304355252534151f);
    p = __builtin_fmaf(p, r, 0.00833336077630519867f);
    p = __builtin_fmaf(p, r, 0.0416664853692054749f);
    p = __builtin_fmaf(p, r, 0.166666671633720398f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(r * r, p, r) + 1.0f;
    const int32_t whole = (int32_t)n, half = whole >> 1;
    return p * if_exp2i(half) * if_exp2i(whole - half);
}
"""
_FLOAT_TANH = """\
// Small |x|: Cephes' odd polynomial; else 1 - 2 / (e^2|x| + 1), which is 1 from 9.02 on.
static inline float if_tanh(float x) {
    const float a = __builtin_fabsf(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = __builtin_fmaf(p, z, 2.06390887954e-2f);
    p = __builtin_fmaf(p, z, -5.37397155531e-2f);
    p = __builtin_fmaf(p, z, 1.33314422036e-1f);
    p = __builtin_fmaf(p, z, -3.33332819422e-1f);
    const float small = __builtin_fmaf(p * z, x, x);
    const float large = 1.0f - 2.0f / (if_exp(a + a) + 1.0f);
    return a < 0.625f ? small : __builtin_copysignf(large, x);
}
"""


@dataclass(frozen=True, slots=True)
class _Library:
    """A function of one or two numbers in the libraries: the end of its name in SLEEF (None: not there), and its name in MKL ("": not used)."""

    arity: int = 1
    sleef: str | None = "_u10"
    mkl: str = ""


def _library_function(name: str, ctype: str, row: _Library) -> str:
    """One function: the first library that is there, else C's."""
    plain = "f" if ctype == "float" else ""
    args = ", ".join("xy"[: row.arity])
    params = ", ".join(f"{ctype} {a}" for a in "xy"[: row.arity])
    branches = []
    if row.mkl:
        letter = "s" if ctype == "float" else "d"
        prefix = "// 0x140102: high accuracy, denormals kept, errors ignored\n"
        prefix += f'extern "C" void vm{letter}{row.mkl}(int, const {ctype}*, {ctype}*, int64_t);\n'

        def call(vector: str, lanes: int) -> str:
            return f"{{ {vector} y; vm{letter}{row.mkl}({lanes}, (const {ctype}*)&x, ({ctype}*)&y, 0x140102); return y; }}"

        branches.append(("defined(IF_MKL) && defined(__AVX2__)", prefix + _clones(name, ctype, row.arity, call)))
    if row.sleef is not None:
        letter, sleef = "f" if ctype == "float" else "d", row.sleef
        declared = "".join(
            f'{guard}extern "C" v{n}{letter} Sleef_{name}{letter}{n}{sleef}({", ".join([f"v{n}{letter}"] * row.arity)});\n{end}'
            for n, guard, end in ((8 if plain else 4, "", ""), (16 if plain else 8, "#ifdef __AVX512F__\n", "#endif\n"))
        )

        def call(vector: str, lanes: int) -> str:
            return f"{{ return Sleef_{name}{letter}{lanes}{sleef}({args}); }}"

        branches.append(("defined(IF_SLEEF) && defined(__AVX2__)", declared + _clones(name, ctype, row.arity, call)))
    text = "".join(f"#{'el' if i else ''}if {condition}\n{body}" for i, (condition, body) in enumerate(branches))
    fallback = f"if_plain_{name}({args})" if name in _WITHOUT_LIBRARY else f"__builtin_{name}{plain}({args})"
    written = _WITHOUT_LIBRARY.get(name, "").format(t=ctype, f=plain)
    last = f"{written}static inline {ctype} if_{name}({params}) {{ return {fallback}; }}\n"
    return f"{text}#else\n{last}#endif\n" if text else last


def _clones(name: str, ctype: str, arity: int, call: Callable[[str, int], str]) -> str:
    """The declaration as a vector function, its clones for a whole, half and double vector, and its scalar form. `call(vector type, lanes)` is the
    body of a function of `x` (and `y`) of that type, for 8 and 16 floats, or 4 and 8 doubles."""
    letter, lanes = ("f", 8) if ctype == "float" else ("d", 4)
    base, kinds = f"if_{name}_{letter}", "v" * arity
    operands = "xy"[:arity]
    whole, half, wide = f"v{lanes}{letter}", f"v{lanes // 2}{letter}", f"v{lanes * 2}{letter}"

    def params(kind: str) -> str:
        return ", ".join(f"{kind} {a}" for a in operands)

    def define(symbol: str, kind: str, suffix: str, body: str) -> str:
        head = f"static __attribute__((used)) {kind} {name}_{letter}_{suffix}({params(kind)})"
        return f'{head} __asm__("{symbol}");\nstatic {kind} {name}_{letter}_{suffix}({params(kind)}) {body}\n'

    widened = ", ".join(f"if_widen<{whole}>({a})" for a in operands)
    filled = ", ".join(f"{whole}{{{a}}}" for a in operands)
    return "".join(
        (
            f'extern "C" __attribute__((simd("notinbranch"), const, nothrow)) {ctype} {base}({params(ctype)});\n',
            define(f"_ZGVdN{lanes}{kinds}_{base}", whole, "full", call(whole, lanes)),
            define(f"_ZGVbN{lanes // 2}{kinds}_{base}", half, "half", f"{{ return if_narrow<{half}>({name}_{letter}_full({widened})); }}"),
            define(base, ctype, "one", f"{{ return {name}_{letter}_full({filled})[0]; }}"),
            "#ifdef __AVX512F__\n",
            define(f"_ZGVeN{lanes * 2}{kinds}_{base}", wide, "wide", call(wide, lanes * 2)),
            "#endif\n",
            f"static inline {ctype} if_{name}({params(ctype)}) {{ return {base}({', '.join(operands)}); }}\n",
        )
    )


# What neither SLEEF nor C has. erfinv: a rational first guess, then two steps of Newton's method.
_WITHOUT_LIBRARY = {
    "erfinv": """\
static {t} if_plain_erfinv({t} x) {{
    const {t} a = __builtin_fabs{f}(x);
    if (!(a < 1)) return a == 1 ? __builtin_copysign{f}(__builtin_inf{f}(), x) : __builtin_nan{f}("");
    {t} y, z;
    if (a <= ({t})0.7) {{
        z = x * x;
        y = x * (((({t})-0.140543331 * z + ({t})0.914624893) * z + ({t})-1.645349621) * z + ({t})0.886226899);
        y /= (((({t})0.012229801 * z + ({t})-0.329097515) * z + ({t})1.442710462) * z + ({t})-2.118377725) * z + 1;
    }} else {{
        z = __builtin_sqrt{f}(-__builtin_log{f}((1 - a) / 2));
        y = ((({t})1.641345311 * z + ({t})3.429567803) * z + ({t})-1.624906493) * z + ({t})-1.970840454;
        y = __builtin_copysign{f}(y / ((({t})1.637067800 * z + ({t})3.543889200) * z + 1), x);
    }}
    for (int step = 0; step < 2; ++step) y -= (__builtin_erf{f}(y) - x) / (({t})1.1283791670955126 * __builtin_exp{f}(-y * y));
    return y;
}}
""",
}
_FLOAT_LIBRARY: dict[str, _Library] = {
    **{
        name: _Library()
        for name in (
            *("log", "log2", "log10", "log1p", "exp2", "expm1", "sin", "cos", "sinh", "cosh"),
            *("asin", "acos", "atan", "atanh", "erf", "lgamma"),
        )
    },
    "asinh": _Library(sleef=None),
    "acosh": _Library(sleef=None),
    "erfc": _Library(sleef="_u15"),
    "tan": _Library(mkl="Tan"),
    "erfinv": _Library(sleef=None, mkl="ErfInv"),
    "pow": _Library(arity=2),
    "atan2": _Library(arity=2),
    "fmod": _Library(arity=2, sleef=""),
    "nextafter": _Library(arity=2, sleef=""),
}
_DOUBLE_LIBRARY: dict[str, _Library] = {**_FLOAT_LIBRARY, "exp": _Library(mkl="Exp"), "tanh": _Library()}


_VECTORS = """\
#if (defined(IF_SLEEF) || defined(IF_MKL)) && defined(__AVX2__)
typedef float v4f __attribute__((vector_size(16)));
typedef float v8f __attribute__((vector_size(32)));
typedef float v16f __attribute__((vector_size(64)));
typedef double v2d __attribute__((vector_size(16)));
typedef double v4d __attribute__((vector_size(32)));
typedef double v8d __attribute__((vector_size(64)));
template <class Wide, class Narrow> static inline Wide if_widen(Narrow x) {
    Wide wide = {};
    __builtin_memcpy(&wide, &x, sizeof x);
    return wide;
}
template <class Narrow, class Wide> static inline Narrow if_narrow(Wide wide) {
    Narrow x;
    __builtin_memcpy(&x, &wide, sizeof x);
    return x;
}
#endif
"""

# name → text; a piece's needs are the other names that its text mentions
PIECES: dict[str, str] = {
    "Scratch": """\
// Memory for a row or for the results of chunks, freed where its scope ends.
struct Scratch {
    void* memory;
    explicit Scratch(int64_t bytes) : memory(__builtin_malloc(bytes)) {}
    ~Scratch() { __builtin_free(memory); }
    template <class T> T* as() const { return (T*)memory; }
};
""",
    "if_least": "static inline int64_t if_least(int64_t a, int64_t b) { return a < b ? a : b; }\n",
    "bf16": """\
// In memory only; values are held in float.
struct bf16 { uint16_t bits; };
static inline float if_load(bf16 x) { return __builtin_bit_cast(float, (uint32_t)x.bits << 16); }
static inline float if_round_bf16(float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    return __builtin_bit_cast(float, x != x ? 0x7fc00000u : rounded);
}
static inline bf16 if_bf16(float x) { return {(uint16_t)(__builtin_bit_cast(uint32_t, x) >> 16)}; }  // x is rounded already
""",
    "f16": """\
// In memory only; values are held in float. Conversions are by arithmetic on bits, which vectorises on every machine (after F. Giesen).
struct f16 { uint16_t bits; };
static inline float if_load(f16 x) {
    const int32_t bits = x.bits, rest = (bits & 0x7fff) << 13;
    const float scaled = __builtin_bit_cast(float, rest) * 0x1p112f;
    const int32_t finite = __builtin_bit_cast(int32_t, scaled);
    return __builtin_bit_cast(float, (rest >= 0x0f800000 ? 0x7f800000 | rest : finite) | (int32_t)((uint32_t)(bits & 0x8000) << 16));
}
static inline f16 if_f16(float x) {  // x is rounded already
    const int32_t bits = __builtin_bit_cast(int32_t, x), magnitude = bits & 0x7fffffff;
    const int32_t tiny = __builtin_bit_cast(int32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000;
    const int32_t finite = magnitude < 0x38800000 ? tiny : (magnitude - 0x38000000) >> 13;
    const int32_t half = magnitude > 0x7f800000 ? 0x7e00 : magnitude == 0x7f800000 ? 0x7c00 : finite;
    return {(uint16_t)(half | ((bits >> 16) & 0x8000))};
}
static inline float if_round_f16(float x) {
    const int32_t bits = __builtin_bit_cast(int32_t, x), magnitude = bits & 0x7fffffff;
    const float tiny = (__builtin_bit_cast(float, magnitude) + 0.5f) - 0.5f;  // a multiple of 2^-24
    const int32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & ~0x1fff;
    const int32_t finite = magnitude < 0x38800000 ? __builtin_bit_cast(int32_t, tiny) : normal;
    const int32_t rounded = magnitude > 0x7f800000 ? 0x7fc00000 : finite >= 0x47800000 ? 0x7f800000 : finite;
    return __builtin_bit_cast(float, rounded | (bits & (int32_t)0x80000000));
}
""",
    "if_exp2i": "static inline float if_exp2i(int32_t n) { return __builtin_bit_cast(float, (n + 127) << 23); }\n",
    "if_vectors": _VECTORS,
    "if_exp": "// needs if_exp2i\n" + _FLOAT_EXP,
    "if_tanh": "// needs if_exp\n" + _FLOAT_TANH,
    **{f"if_{name}": "// needs if_vectors\n" + _library_function(name, "float", row) for name, row in _FLOAT_LIBRARY.items()},
    "if_abs": """\
static inline float if_abs(float x) { return __builtin_fabsf(x); }
static inline double if_abs(double x) { return __builtin_fabs(x); }
template <class T> static inline T if_abs(T x) { return x < 0 ? -x : x; }
""",
    "if_min": """\
// Not a number wins, as in PyTorch.
template <class T> static inline T if_min(T a, T b) { return (a < b) | (a != a) ? a : b; }
""",
    "if_max": """\
// Not a number wins, as in PyTorch.
template <class T> static inline T if_max(T a, T b) { return (a > b) | (a != a) ? a : b; }
""",
    "if_sqrt": """\
static inline float if_sqrt(float x) { return __builtin_sqrtf(x); }
static inline double if_sqrt(double x) { return __builtin_sqrt(x); }
""",
    "if_rsqrt": "// needs if_sqrt\ntemplate <class T> static inline T if_rsqrt(T x) { return (T)1 / if_sqrt(x); }\n",
    "if_recip": "template <class T> static inline T if_recip(T x) { return (T)1 / x; }\n",
    "if_relu": "template <class T> static inline T if_relu(T x) { return x < (T)0 ? (T)0 : x; }\n",
    "if_neg": "template <class T> static inline T if_neg(T x) { return -x; }\n",
    "if_sigmoid": "// needs if_exp\ntemplate <class T> static inline T if_sigmoid(T x) { return (T)1 / ((T)1 + if_exp(-x)); }\n",
    "if_silu": "// needs if_exp\ntemplate <class T> static inline T if_silu(T x) { return x / ((T)1 + if_exp(-x)); }\n",
    "if_idiv": """\
// Towards zero; the two quotients that would trap are 0 / 0 = 0 and the lowest integer, which stays.
template <class T> static inline T if_idiv(T a, T b) { return b == 0 ? 0 : b == -1 ? (T)(0 - (uint64_t)a) : a / b; }
""",
    "if_ipow": """\
static inline int64_t if_ipow(int64_t base, int64_t exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    int64_t result = 1;
    for (; exponent; exponent >>= 1, base *= base) result = exponent & 1 ? result * base : result;
    return result;
}
""",
    "if_where": "template <class T> static inline T if_where(bool condition, T a, T b) { return condition ? a : b; }\n",
    "if_sign": "template <class T> static inline T if_sign(T x) { return (T)((x > (T)0) - (x < (T)0)); }\n",
    "if_ceil": """\
static inline float if_ceil(float x) { return __builtin_ceilf(x); }
static inline double if_ceil(double x) { return __builtin_ceil(x); }
""",
    "if_floor": """\
static inline float if_floor(float x) { return __builtin_floorf(x); }
static inline double if_floor(double x) { return __builtin_floor(x); }
""",
    "if_round": """\
// Halves to even.
static inline float if_round(float x) { return __builtin_rintf(x); }
static inline double if_round(double x) { return __builtin_rint(x); }
""",
    "if_trunc": """\
static inline float if_trunc(float x) { return __builtin_truncf(x); }
static inline double if_trunc(double x) { return __builtin_trunc(x); }
""",
    "if_erfcinv": "// needs if_erfinv\ntemplate <class T> static inline T if_erfcinv(T x) { return if_erfinv((T)1 - x); }\n",
    "if_remainder": """\
// needs if_fmod
// Of the divisor's sign, as in Python.
template <class T> static inline T if_remainder(T a, T b) {
    const T rest = if_fmod(a, b);
    return (rest != 0) & ((rest < 0) != (b < 0)) ? rest + b : rest;
}
""",
    "if_fma": """\
static inline float if_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double if_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
template <class T> static inline T if_fma(T a, T b, T c) { return a * b + c; }
""",
    "if_lerp": """\
// needs if_abs if_fma
// From the nearer end, so that weights 0 and 1 give the ends exactly.
template <class T> static inline T if_lerp(T start, T end, T weight) {
    const bool near = if_abs(weight) < (T)0.5;
    return if_fma(near ? weight : weight - (T)1, end - start, near ? start : end);
}
""",
    "if_addcmul": "// needs if_fma\ntemplate <class T> static inline T if_addcmul(T a, T b, T c, T value) { return if_fma(value * b, c, a); }\n",
    "if_irem": """\
// Of the dividend's sign; what would trap gives 0.
template <class T> static inline T if_irem(T a, T b) { return b == 0 || b == -1 ? 0 : a % b; }
""",
    "if_iremainder": """\
// needs if_irem
template <class T> static inline T if_iremainder(T a, T b) {
    const T rest = if_irem(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
""",
    "if_bitnot": """\
static inline bool if_bitnot(bool x) { return !x; }
template <class T> static inline T if_bitnot(T x) { return ~x; }
""",
    "if_shl": """\
// A shift by the width or more, or by a negative number, leaves no bits.
template <class T> static inline T if_shl(T a, T b) { return b < 0 || b >= (T)(8 * sizeof(T)) ? 0 : (T)((uint64_t)a << b); }
""",
    "if_shr": """\
// Copies of the sign come in at the top.
template <class T> static inline T if_shr(T a, T b) { return a >> (b < 0 || b >= (T)(8 * sizeof(T)) ? (T)(8 * sizeof(T) - 1) : b); }
""",
    "if_lshr": """\
// Zeros come in at the top.
static inline int32_t if_lshr(int32_t a, int32_t b) { return b < 0 || b > 31 ? 0 : (int32_t)((uint32_t)a >> b); }
static inline int64_t if_lshr(int64_t a, int64_t b) { return b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a >> b); }
""",
    "if_gcd": """\
template <class T> static inline T if_gcd(T a, T b) {
    a = a < 0 ? -a : a, b = b < 0 ? -b : b;
    while (a != 0) {
        const T rest = b % a;
        b = a, a = rest;
    }
    return b;
}
""",
}


DOUBLE: dict[str, str] = {f"if_{name}": _library_function(name, "double", row) for name, row in _DOUBLE_LIBRARY.items()}


_HALF = {f"if_{form}{half}": half for half in ("bf16", "f16") for form in ("", "round_")}


def prelude(body: str, *, has_double: bool) -> str:
    """The pieces that a kernel's body uses, in an order in which each comes after its needs; forms for doubles only where it has any."""
    found: list[str] = []
    words = {_HALF.get(word, word) for word in re.findall(r"\w+", body)}
    for name in PIECES:
        if name in words:
            _add(name, found)
    if "if_vectors" in found or (has_double and any(name in DOUBLE for name in found)):
        found = ["if_vectors", *(name for name in found if name != "if_vectors")]
    return "\n".join(_text(name) + (DOUBLE.get(name, "") if has_double else "") for name in found)


def _add(name: str, found: list[str]) -> None:
    if name in found:
        return
    for need in _needs(name):
        _add(need, found)
    found.append(name)


def _needs(name: str) -> list[str]:
    first = PIECES[name].partition("\n")[0]
    return first.removeprefix("// needs ").split() if first.startswith("// needs ") else []


def _text(name: str) -> str:
    text = PIECES[name]
    return text.partition("\n")[2] if _needs(name) else text
