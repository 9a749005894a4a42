"""The C++ functions that emitted kernels call, each with what it needs; a kernel's text holds only those that it uses.

`exp` and `tanh` of floats are written out: short polynomials that the compiler vectorises in place, within 1 ulp. Other transcendental functions
go to SLEEF, which torch's own library exports; they are declared as vector functions (`simd`), and their vector forms are defined here under
the names that the x86-64 vector ABI gives them, so that a loop over lanes calls eight at a time. Scalar calls go through the same code, so a
result does not depend on where in a loop its element falls. Without SLEEF (`IF_SLEEF` undefined, or no AVX2) the C library serves.
"""

from __future__ import annotations

import re

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


def _sleef_function(name: str, ctype: str, binary: bool) -> str:
    """One function: its declaration as a vector function, its clones for 16, 8, 4 (or half as many) lanes, and its scalar form."""
    letter, lanes = ("f", 8) if ctype == "float" else ("d", 4)
    base = f"if_{name}_{letter}"
    kinds = "vv" if binary else "v"
    plain = "f" if ctype == "float" else ""

    def params(kind: str) -> str:
        return f"{kind} x, {kind} y" if binary else f"{kind} x"

    args = "x, y" if binary else "x"
    types = ", ".join([ctype] * len(kinds))
    vector = f"v{lanes}{letter}"
    half = f"v{lanes // 2}{letter}"
    wide = f"v{lanes * 2}{letter}"
    widen = ", ".join(f"if_widen<{vector}>({a})" for a in args.split(", "))
    lines = [
        "#if defined(IF_SLEEF) && defined(__AVX2__)",
        f'extern "C" __attribute__((simd("notinbranch"), const, nothrow)) {ctype} {base}({types});',
        f'extern "C" {vector} Sleef_{name}{letter}{lanes}_u10({", ".join([vector] * len(kinds))});',
    ]

    def define(symbol: str, kind: str, suffix: str, body: str) -> None:
        lines.append(f'static __attribute__((used)) {kind} {name}_{letter}_{suffix}({params(kind)}) __asm__("{symbol}");')
        lines.append(f"static {kind} {name}_{letter}_{suffix}({params(kind)}) {{ return {body}; }}")

    define(f"_ZGVdN{lanes}{kinds}_{base}", vector, "full", f"Sleef_{name}{letter}{lanes}_u10({args})")
    define(f"_ZGVbN{lanes // 2}{kinds}_{base}", half, "half", f"if_narrow<{half}>(Sleef_{name}{letter}{lanes}_u10({widen}))")
    define(base, ctype, "one", f"Sleef_{name}{letter}{lanes}_u10({', '.join(f'{vector}{{{a}}}' for a in args.split(', '))})[0]")
    lines.append("#ifdef __AVX512F__")
    lines.append(f'extern "C" {wide} Sleef_{name}{letter}{lanes * 2}_u10({", ".join([wide] * len(kinds))});')
    define(f"_ZGVeN{lanes * 2}{kinds}_{base}", wide, "wide", f"Sleef_{name}{letter}{lanes * 2}_u10({args})")
    lines.append("#endif")
    lines.append(f"static inline {ctype} if_{name}({params(ctype)}) {{ return {base}({args}); }}")
    lines.append("#else")
    lines.append(f"static inline {ctype} if_{name}({params(ctype)}) {{ return __builtin_{name}{plain}({args}); }}")
    lines.append("#endif")
    return "\n".join(lines) + "\n"


_VECTORS = """\
#if defined(IF_SLEEF) && defined(__AVX2__)
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
    **{f"if_{f}": "// needs if_vectors\n" + _sleef_function(f, "float", f == "pow") for f in ("log", "sin", "cos", "pow")},
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
}


DOUBLE: dict[str, str] = {f"if_{f}": _sleef_function(f, "double", f == "pow") for f in ("exp", "tanh", "log", "sin", "cos", "pow")}


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
