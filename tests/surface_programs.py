"""One small program for every row of the op table: what it calls, on which inputs, and what PyTorch gives.

A sample is made from decisions (types, sizes, layouts, attributes), each a choice among options that mean different things. The first option of
each makes the plain sample; one other option makes a program that differs in one thing; hypothesis chooses them all at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from interfuse import DataType, FusionDefinition
from interfuse.ir.dtypes import from_torch, of_python
from interfuse.ops.random import generate
from interfuse.ops.table import _RULES, TABLE

BOOL, I32, I64, F16, BF16, F32, F64 = torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64
C64, C128 = torch.complex64, torch.complex128
HALVES, FLOATS = (F16, BF16), (F32, F64, BF16, F16)
REAL = (*FLOATS, I64, I32, BOOL)
ALL = (*REAL, C64, C128)
NOT_ON_THIS_DEVICE = ("nv_block_quantize", "nv_grouped_block_quantize", "preprocess_grouped_matmul_input_sf", "cutlass_nvfp4_grouped_mm")


@dataclass(frozen=True)
class Sample:
    """`build(ops, *handles)` calls the op; numbers among the inputs are scalar inputs. `swaps`: the first two tensors may change places, and then
    the program is another one. `exact`: no rounding is expected to differ."""

    inputs: list[Any]
    build: Callable[..., Any]
    reference: Callable[..., Any]
    exact: bool = False
    swaps: bool = False
    near: float | None = None  # how near instead of what the type says


class Pick:
    """Makes decisions. `decide(label, n)` gives the number of an option; the record of a sample is in `made`."""

    def __init__(
        self, decide: Callable[[str, int], int] = lambda label, n: 0, free: Callable[[int], int] = lambda n: 0, *, square: bool = False
    ) -> None:
        self.decide, self._free, self.square = decide, free, square
        self.made: list[tuple[str, int]] = []

    def of(self, label: str, *options: Any) -> Any:
        """One of the options, each of which makes another program."""
        distinct = [o for i, o in enumerate(options) if not any(o is p or (type(o) is type(p) and o == p) for p in options[:i])]
        self.made.append((label, len(distinct)))
        return distinct[self.decide(label, len(distinct))] if len(distinct) > 1 else distinct[0]

    def free(self, *options: Any) -> Any:
        """One of several spellings of the same program."""
        return options[self._free(len(options))]

    def size(self, label: str, first: int, *, least: int = 0) -> int:
        first = 3 if self.square else first
        return self.of(label, first, *(n for n in (1, 0, 7, 2, 5, 3, 6, 4) if n >= least))

    def shape(self, label: str = "", *, ranks: Sequence[int] = (2, 0, 1, 3, 4), least: int = 0) -> tuple[int, ...]:
        rank = self.of(f"{label} rank", *ranks)
        return tuple(self.size(f"{label} size {d}", (3, 4, 2, 3)[d], least=least) for d in range(rank))

    def tensor(self, label: str, shape: Sequence[int], dtype: torch.dtype, low: float = -4, high: float = 4) -> Tensor:
        """Numbers between the bounds, bounds included for integers, in one of the layouts that its rank has."""
        long = [d for d, n in enumerate(shape) if n != 1]
        layouts = ["dense", *(["strided"] if shape else []), *(["expanded"] if long else []), *(["permuted"] if len(long) > 1 else [])]
        layout, seed = self.of(f"layout of {label}", *layouts), self.free(*range(50))
        if layout == "expanded":
            return values([1 if d == long[-1] else n for d, n in enumerate(shape)], dtype, low, high, seed).expand(tuple(shape))
        if layout == "strided":
            return values((*shape[:-1], 2 * shape[-1]), dtype, low, high, seed)[..., ::2]
        if layout == "permuted":
            return values(tuple(reversed(shape)), dtype, low, high, seed).permute(*reversed(range(len(shape))))
        return values(shape, dtype, low, high, seed)


def values(shape: Sequence[int], dtype: torch.dtype, low: float, high: float, seed: int) -> Tensor:
    make = torch.Generator().manual_seed(seed)
    shape = tuple(shape)
    if dtype is BOOL:
        return torch.rand(shape, generator=make) > 0.5
    if dtype.is_complex:
        return torch.complex(*(torch.rand(shape, generator=make, dtype=F64) * (high - low) + low for _ in "ri")).to(dtype)
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=make, dtype=F64) * (high - low) + low).to(dtype)
    return torch.randint(math.ceil(low), math.floor(high) + 1, shape, generator=make).to(dtype)


PROGRAMS: dict[str, Callable[[Pick], Sample]] = {}
Maker = Callable[[Pick], Sample]


def row(*names: str) -> Callable[[Callable[..., Sample]], Callable[..., Sample]]:
    """Enters a maker for rows; one for several rows takes the name first."""

    def enter(make: Callable[..., Sample]) -> Callable[..., Sample]:
        for name in names:
            PROGRAMS[name] = make if len(names) == 1 else (lambda p, name=name: make(name, p))
        return make

    return enter


def variants(name: str, *, square: bool = False) -> Iterator[tuple[str, Sample]]:
    """The plain sample, then one for every other option of every decision that it made. In a square one all dims are equally long, so that
    programs are told apart by what they do and not by their shapes."""
    plain = Pick(square=square)
    yield "plain", PROGRAMS[name](plain)
    for changed, (label, count) in enumerate(plain.made):
        for option in range(1, count):
            pick = Pick(lambda _, n, o=option, c=changed: o if len(pick.made) - 1 == c else 0, square=square)  # noqa: B023
            yield f"{label} {option}", PROGRAMS[name](pick)


def program(sample: Sample, *, static: bool = False, definition: type = FusionDefinition, more: Callable[..., None] | None = None) -> Any:
    """A definition of the sample, finished; `more(fd, handles, results)` gives the outputs in place of the results themselves."""
    with definition() as fd:
        handles = define(fd, sample, static)
        made = results(sample.build(fd.ops, *handles))
        if more is not None:
            more(fd, handles, made)
        else:
            for out in made:
                fd.add_output(out)
    return fd


def define(fd: Any, sample: Sample, static: bool = False) -> list[Any]:
    return [fd.from_pytorch(v, static) if isinstance(v, Tensor) else fd.define_scalar(of_python(v)) for v in sample.inputs]


def results(made: Any) -> list[Any]:
    return [m for m in made if m is not None] if isinstance(made, tuple | list) else [made]


def number(dtype: torch.dtype) -> Any:
    """A number of a type's kind."""
    return True if dtype is BOOL else 1.5 - 0.5j if dtype.is_complex else 0.75 if dtype.is_floating_point else 3


def kind(dtype: torch.dtype) -> DataType:
    found = from_torch(dtype)
    assert found is not None
    return found


# ---- elementwise ----------------------------------------------------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "silu": F.silu,
    "div": lambda a, b: torch.div(a, b, rounding_mode=None if a.is_floating_point() or a.is_complex() else "trunc"),
    "truediv": torch.true_divide,
    "mod": torch.fmod,
    "erfcinv": lambda x: torch.erfinv(1 - x),
    "logical_right_shift": lambda a, b: _shifted(a, b),
    "real": lambda x: x.real if x.is_complex() else x,
    "abs": lambda x: x if x.dtype is BOOL else x.abs(),
}
_BITS = {I32: (torch.uint32, 2**32), I64: (torch.uint64, 2**64)}
_UNIT, _OPEN = ("acos", "asin", "atanh", "erfinv"), ("erfcinv",)
_POSITIVE = ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "acosh", "lgamma", "reciprocal")
_DIVIDES = ("div", "mod", "fmod", "remainder", "truediv")
_SHIFTS = ("bitwise_left_shift", "bitwise_right_shift", "logical_right_shift")
_COMMUTES = ("add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_xor", "gcd")
_ARITY = {name: TABLE[name].signature.count(",") + 1 for names in _RULES.values() for name in names}
_ONLY = {"FULL_FLOAT": (F32, F64), "BITWISE": (I64, I32, BOOL), "INTEGRAL": (I64, I32)}
_EXACT_RULES = {"PLAIN", "FULL_FLOAT", "BITWISE", "INTEGRAL", "COMPARE", "LOGICAL", "TEST"}
RULE = {name: rule.name for rule, names in _RULES.items() for name in names}


def _shifted(a: Tensor, b: Tensor) -> Tensor:
    bits = 32 if a.dtype is I32 else 64
    made = [((x % 2**bits) >> s) for x, s in zip(a.reshape(-1).tolist(), b.expand(a.shape).reshape(-1).tolist(), strict=True)]
    return torch.tensor([v - 2**bits if v >= 2 ** (bits - 1) else v for v in made], dtype=a.dtype).reshape(a.shape)


def plain_torch(name: str) -> Callable[..., Tensor]:
    """torch's function in the type in which the row computes; numbers are tensors without dims of that type."""
    function, rule = _FUNCTIONS.get(name) or getattr(torch, name), RULE.get(name, "ARITHMETIC")

    def run(*args: Any) -> Tensor:
        common = next(a.dtype for a in args if isinstance(a, Tensor))
        if rule in ("ARITHMETIC", "FLOATING", "COMPARE") and common in HALVES:
            common = F32
        if rule == "FLOATING" and not common.is_floating_point and not common.is_complex:
            common = F32
        typed = [a.to(common) if isinstance(a, Tensor) else torch.tensor(a, dtype=common) for a in args]
        return function(*torch.broadcast_tensors(*typed))

    return run


def _bounds(name: str, position: int, dtype: torch.dtype) -> tuple[float, float]:
    if name in _UNIT + _OPEN:
        return (0.0, 1.0) if name in _OPEN else (-1.0, 1.0)
    if name in _POSITIVE or (name in _DIVIDES and position == 1):
        return 1, 5
    if name in _SHIFTS and position == 1:
        return 0, 9
    return (0.25, 3) if name == "pow" and not dtype.is_complex else (-4, 4)


def computed_types(name: str) -> tuple[torch.dtype, ...]:
    """Types in which PyTorch has this function on a CPU."""
    found = []
    for dtype in _ONLY.get(RULE.get(name, ""), ALL):
        try:
            plain_torch(name)(*[values((2,), dtype, *_bounds(name, i, dtype), 0) for i in range(_ARITY[name])])
        except (RuntimeError, TypeError):
            continue
        found.append(dtype)
    return tuple(found)


def _operands(p: Pick, name: str, dtype: torch.dtype, arity: int, *, numbers: bool = True) -> tuple[list[Any], list[Any]]:
    """Operands that broadcast: the inputs among them, and all of them, with None for an input."""
    shape = p.shape()
    forms = ["same", *(["suffix"] if shape else []), *(["ones"] if any(n != 1 for n in shape) else []), "nothing"]
    inputs: list[Any] = []
    places: list[Any] = []
    for i in range(arity):
        form = "same" if not i else p.of(f"operand {i}", *forms, *(["constant", "number"] if numbers else []))
        if form == "constant":
            places.append(number(dtype))
            continue
        own = {"suffix": shape[1:], "ones": tuple(1 if d % 2 == i % 2 else n for d, n in enumerate(shape)), "nothing": ()}.get(form, shape)
        if form == "ones" and own == shape:
            own = (1,) * len(shape)
        inputs.append(number(dtype) if form == "number" else p.tensor(f"operand {i}", own, dtype, *_bounds(name, i, dtype)))
        places.append(None)
    return inputs, places


def _filled(places: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    rest = iter(given)
    return [next(rest) if p is None else p for p in places]


def _elementwise(name: str, types: tuple[torch.dtype, ...]) -> Maker:
    def make(p: Pick) -> Sample:
        dtype = p.of("dtype", *types)
        inputs, places = _operands(p, name, dtype, _ARITY[name])
        return Sample(
            inputs,
            lambda ops, *xs: getattr(ops, name)(*_filled(places, xs)),
            lambda *xs: plain_torch(name)(*_filled(places, xs)),
            exact=RULE[name] in _EXACT_RULES and name != "silu",
            swaps=_ARITY[name] > 1 and name not in _COMMUTES,
        )

    return make


for _name in RULE:
    PROGRAMS[_name] = _elementwise(_name, computed_types(_name))


@row("where")
def _where(p: Pick) -> Sample:
    dtype = p.of("dtype", *ALL)
    inputs, places = _operands(p, "where", dtype, 2)
    mask = p.tensor("condition", inputs[0].shape, BOOL)
    return Sample(
        [mask, *inputs],
        lambda ops, c, *xs: ops.where(c, *_filled(places, xs)),
        lambda c, *xs: torch.where(c, *[x if isinstance(x, Tensor) else torch.tensor(x, dtype=dtype) for x in _filled(places, xs)]),
        exact=True,
    )


@row("imag")
def _imag(p: Pick) -> Sample:
    return Sample([p.tensor("x", p.shape(), p.of("dtype", C64, C128))], lambda ops, x: ops.imag(x), torch.imag, exact=True)


@row("complex")
def _complex(p: Pick) -> Sample:
    inputs, _ = _operands(p, "complex", p.of("dtype", F32, F64), 2, numbers=False)
    return Sample(inputs, lambda ops, a, b: ops.complex(a, b), lambda a, b: torch.complex(*torch.broadcast_tensors(a, b)), exact=True, swaps=True)


@row("threshold")
def _threshold(p: Pick) -> Sample:
    dtype = p.of("dtype", *FLOATS, I64, I32)
    bound, value = p.of("threshold", 1, -2), p.of("value", 3, 0)
    return Sample(
        [p.tensor("x", p.shape(), dtype)], lambda ops, x: ops.threshold(x, bound, value), lambda x: torch.where(x <= bound, value, x), exact=True
    )


@row("addcmul")
def _addcmul(p: Pick) -> Sample:
    inputs, _ = _operands(p, "addcmul", p.of("dtype", *FLOATS, C64), 3, numbers=False)
    value = p.of("value", 0.5, 2.0, "input")
    wide = lambda t: t.float() if t.dtype in HALVES else t  # noqa: E731
    return Sample(
        [*inputs, *([1.5] if value == "input" else [])],
        lambda ops, a, b, c, v=value: ops.addcmul(a, b, c, v),
        lambda a, b, c, v=value: torch.addcmul(wide(a), wide(b), wide(c), value=v),
        swaps=True,
    )


@row("clamp")
def _clamp(p: Pick) -> Sample:
    dtype, low, high = p.of("dtype", *FLOATS, I64, I32), p.of("min", -1, None, -2), p.of("max", 2, None, 1)
    bounded = lambda x: x.clone() if low is None and high is None else x.clamp(low, high)  # noqa: E731
    return Sample([p.tensor("x", p.shape(), dtype)], lambda ops, x: ops.clamp(x, low, high), bounded, exact=True)


@row("triu")
def _triu(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(ranks=(2, 3, 4)), p.of("dtype", *ALL))
    diagonal = p.of("diagonal", 0, 1, -1, 9)
    return Sample([x], lambda ops, x: ops.triu(x, diagonal), lambda x: torch.triu(x, diagonal), exact=True)


@row("cast")
def _cast(p: Pick) -> Sample:
    source, wanted = p.of("dtype", *ALL), p.of("type", F64, F32, F16, BF16, I64, I32, BOOL, C64, C128)
    low = 0 if source.is_complex else -4

    def run(x: Tensor) -> Tensor:
        return (x.real if x.is_complex() and not wanted.is_complex and wanted is not BOOL else x).to(wanted)

    return Sample([p.tensor("x", p.shape(), source, low)], lambda ops, x: ops.cast(x, kind(wanted)), run, exact=True)


@row("set", "segment_set")
def _copy(name: str, p: Pick) -> Sample:
    return Sample([p.tensor("x", p.shape(), p.of("dtype", *ALL))], lambda ops, x: getattr(ops, name)(x), torch.clone, exact=True)


# ---- reductions -----------------------------------------------------------------------------------------------------------------------------


def _dims(p: Pick, ndim: int, label: str = "dims") -> tuple[int, ...] | None:
    """Dims to reduce, or None for all of them."""
    some = [(d,) for d in reversed(range(ndim))] if ndim > 1 else []
    more = [(0, ndim - 1), (1, 2)] if ndim > 2 else []
    return p.of(label, *some, None, *more)


def _spelled(p: Pick, dims: tuple[int, ...] | None, ndim: int) -> Any:
    return dims if dims is None else p.free(list(dims), [d - ndim for d in reversed(dims)], *([dims[0]] if len(dims) == 1 else []))


def _kept(x: Tensor, dims: tuple[int, ...] | None, keepdim: bool) -> tuple[int, ...]:
    over = range(x.ndim) if dims is None else dims
    return tuple(1 if d in over else n for d, n in enumerate(x.shape) if keepdim or d not in over)


@row("sum", "prod")
def _sums(name: str, p: Pick) -> Sample:
    dtype, x_shape = p.of("dtype", *ALL), p.shape()
    dims, keepdim = _dims(p, len(x_shape)), p.of("keepdim", False, True)
    result = p.of("result", None, C128 if dtype.is_complex else F64 if dtype is not F64 else F32)
    low, high = (1, 1.25) if name == "prod" and (dtype.is_floating_point or dtype.is_complex) else (-3, 3)
    x, spelled = p.tensor("x", x_shape, dtype, low, high), _spelled(p, dims, len(x_shape))
    made = result or (I64 if dtype in (BOOL, I32) else dtype)

    def run(x: Tensor) -> Tensor:
        wide = x.to(F64 if made.is_floating_point else made)
        for d in sorted(range(x.ndim) if dims is None else dims, reverse=True):
            wide = getattr(wide, name)(d)
        return wide.reshape(_kept(x, dims, keepdim)).to(made)

    return Sample([x], lambda ops, x: getattr(ops, name)(x, spelled, keepdim, None if result is None else kind(result)), run)


@row("max", "min")
def _extremes(name: str, p: Pick) -> Sample:
    dtype, x_shape = p.of("dtype", *REAL), p.shape()
    dims, keepdim = _dims(p, len(x_shape)), p.of("keepdim", False, True)
    x, spelled = p.tensor("x", x_shape, dtype), _spelled(p, dims, len(x_shape))

    def run(x: Tensor) -> Tensor:
        over = tuple(range(x.ndim)) if dims is None else dims
        shape = _kept(x, dims, keepdim)
        if all(x.shape[d] for d in over):
            return (getattr(x, "a" + name)(over) if over else x).reshape(shape)
        low, high = (
            (-math.inf, math.inf) if dtype.is_floating_point else (0, 1) if dtype is BOOL else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        )
        return torch.full(shape, low if name == "max" else high, dtype=dtype)

    return Sample([x], lambda ops, x: getattr(ops, name)(x, spelled, keepdim), run, exact=True)


@row("var", "var_mean", "welford")
def _moments(name: str, p: Pick) -> Sample:
    types = (F32, F64, C64, C128) if name == "var_mean" else (*FLOATS, C64, C128)
    dtype, x_shape = p.of("dtype", *types), p.shape()
    dims, keepdim, correction = _dims(p, len(x_shape)), False, 0
    if name != "welford":
        keepdim, correction = p.of("keepdim", False, True), p.of("correction", 1, 0, 2)
    x, spelled = p.tensor("x", x_shape, dtype), _spelled(p, dims, len(x_shape))

    def build(ops: Any, x: Any) -> Any:
        return ops.welford(x, spelled) if name == "welford" else getattr(ops, name)(x, spelled, correction, keepdim)

    def run(x: Tensor) -> Any:
        wide = x.float() if x.dtype in HALVES else x
        over = tuple(range(x.ndim)) if dims is None else dims
        count = math.prod(x.shape[d] for d in over)
        mean = wide.sum(over, keepdim=True) / count if over else wide.clone()
        square = (wide - mean).abs().square()
        squares = square.sum(over, keepdim=True) if over else square
        shape = _kept(x, dims, keepdim)
        if name == "welford":
            return mean.reshape(shape), squares.reshape(shape), torch.full(shape, count)
        var = (squares / max(count - correction, 0)) if count - correction > 0 or correction == 0 else squares / 0
        return (var.reshape(shape), mean.reshape(shape)) if name == "var_mean" else var.reshape(shape)

    return Sample([x], build, run)


# ---- products -------------------------------------------------------------------------------------------------------------------------------


def _exact_product(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """In a type that holds every sum of small whole numbers, then rounded once."""
    return lambda *xs: function(*[x.to(F64) if x.is_floating_point() else x for x in xs]).to(xs[0].dtype)


def _whole(p: Pick, label: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Small whole numbers of any type, in the layouts of `tensor`."""
    x = p.tensor(label, shape, I64, -3, 3)
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x) if 0 not in x.stride() else _repeated(x, dtype)


def _repeated(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x[tuple(slice(None) if s else slice(0, 1) for s in x.stride())].to(dtype).expand(x.shape)


@row("matmul")
def _matmul(p: Pick) -> Sample:
    dtype = p.of("dtype", *FLOATS, I64, I32)
    m, k, n = p.size("m", 3), p.size("k", 4), p.size("n", 3)
    form = p.of("form", "mk,kn", "k,k", "mk,k", "k,kn", "mk,bkn", "bmk,bkn", "bmk,1kn")
    batch = p.of("batch", (2,), (3, 2)) if "b" in form else ()
    shapes = {"m": (m,), "k": (k,), "n": (n,), "b": batch, "1": (1,) * len(batch)}
    a, b = (sum((shapes[c] for c in word), ()) for word in form.split(","))
    inputs = [_whole(p, "a", a, dtype), _whole(p, "b", b, dtype)]
    return Sample(inputs, lambda ops, a, b: ops.matmul(a, b), _exact_product(torch.matmul), exact=True)


@row("linear")
def _linear(p: Pick) -> Sample:
    dtype = p.of("dtype", *FLOATS, I64, I32)
    k, n = p.size("k", 4), p.size("n", 2)
    rows = p.of("rows", (3,), (), (2, 3), (1,), (0,))
    inputs = [_whole(p, "x", (*rows, k), dtype), _whole(p, "weight", (n, k), dtype)]
    bias = [_whole(p, "bias", (n,), dtype)] if p.of("bias", True, False) else []
    run = lambda x, w, *b: torch.matmul(x, w.t()) + sum(b)  # noqa: E731
    return Sample([*inputs, *bias], lambda ops, *xs: ops.linear(*xs), _exact_product(run), exact=True)


@row("grouped_mm")
def _grouped_mm(p: Pick) -> Sample:
    dtype = p.of("dtype", F32, F64, BF16, F16)
    m, k, n = p.size("m", 3), p.size("k", 4), p.size("n", 5)
    form, scaled = p.of("form", "m", "k", "n"), p.of("scales", False, True)
    whole = {"m": m, "k": k, "n": n}[form]
    ends = [whole // 2, whole]
    a, b = {"m": ((m, k), (2, k, n)), "k": ((m, k), (k, n)), "n": ((2, m, k), (k, n))}[form]
    tensors = [_whole(p, "a", a, dtype), _whole(p, "b", b, dtype), torch.tensor(ends, dtype=p.of("offsets", I32, I64))]
    if scaled:
        scale_a = (2, m, 1) if form != "m" else (m, 1)
        scale_b = (2, 1, n) if form != "n" else (1, n)
        tensors += [_whole(p, "scale1", scale_a, F32), _whole(p, "scale2", scale_b, F32)]

    def build(ops: Any, *xs: Any) -> Any:
        return ops.grouped_mm(*xs, dtype=DataType.Float)[0] if scaled else ops.grouped_mm(*xs)

    def run(a: Tensor, b: Tensor, offsets: Tensor, s1: Tensor | None = None, s2: Tensor | None = None) -> Tensor:
        parts = []
        for g, (i, j) in enumerate(((0, ends[0]), tuple(ends))):
            x = a[i:j] if form == "m" else a[:, i:j] if form == "k" else a[g]
            y = b[g] if form == "m" else b[i:j] if form == "k" else b[:, i:j]
            part = x.double() @ y.double()
            if s1 is not None and s2 is not None:
                part = part * (s1[i:j] if form == "m" else s1[g]) * (s2[:, i:j] if form == "n" else s2[g])
            parts.append(part)
        joined = torch.stack(parts) if form == "k" else torch.cat(parts, 1 if form == "n" else 0)
        return joined.to(F32 if scaled else dtype)

    return Sample(tensors, build, run, exact=True)


@row("scaled_mm")
def _scaled_mm(p: Pick) -> Sample:
    dtype, result = p.of("dtype", F32, BF16), p.of("result", F32, BF16, F16)
    m, k, n = p.size("m", 3), 4, p.size("n", 5)
    by = p.of("scales", "rows", "tensor", "blocks" if m > 1 and n > 1 else "rows")
    s1, s2 = {"rows": ((m, 1), (1, n)), "tensor": ((), ()), "blocks": ((m, 2), (n, 2))}[by]
    more = p.of("more", (), ("alpha",), ("bias",), ("bias", "beta"), ("alpha", "bias", "beta"))
    shapes = {"alpha": (), "bias": (m, n), "beta": ()}
    inputs = [_whole(p, "a", (m, k), dtype), _whole(p, "b", (k, n), dtype), _whole(p, "scale1", s1, F32), _whole(p, "scale2", s2, F32)]
    inputs += [_whole(p, name, shapes[name], F32) for name in more]

    def run(a: Tensor, b: Tensor, s1: Tensor, s2: Tensor, *rest: Tensor) -> Tensor:
        given = dict(zip(more, rest, strict=True))
        if by == "blocks":
            s1, s2 = s1.repeat_interleave(2, 1), s2.repeat_interleave(2, 1).t()
        out = (a.double() * s1) @ (b.double() * s2) * given.get("alpha", 1)
        return (out + given.get("bias", 0) * given.get("beta", 1)).to(result)

    return Sample(
        inputs, lambda ops, a, b, s, t, *rest: ops.scaled_mm(a, b, s, t, **dict(zip(more, rest, strict=True)), dtype=kind(result))[0], run, exact=True
    )


# ---- attention ------------------------------------------------------------------------------------------------------------------------------


def _qkv(p: Pick, dtype: torch.dtype) -> list[Tensor]:
    batch, heads = p.size("batch", 2, least=1), p.of("heads", 3, 1)
    rows, length, width = p.size("rows", 4, least=1), p.size("length", 5, least=1), p.of("width", 8, 4)
    shapes = ((batch, heads, rows, width), (batch, heads, length, width), (batch, heads, length, width))
    return [values(s, dtype, -1, 1, i + p.free(*range(9))) for i, s in enumerate(shapes)]


def _attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, causal: bool | None, scale: float | None) -> tuple[Tensor, Tensor]:
    scores = q.double() @ k.double().transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=BOOL).triu(1), -math.inf)
    scores = scores if added is None else scores + added.double()
    return scores.softmax(-1) @ v.double(), scores.logsumexp(-1)


@row("sdpfa_fwd")
def _sdpfa_fwd(p: Pick) -> Sample:
    inputs = _qkv(p, p.of("dtype", F32, F64, BF16, F16))
    causal, scale, bias = p.of("is_causal", None, True), p.of("scale", None, 0.25), p.of("bias", False, True)
    shape = (*inputs[0].shape[:-1], inputs[1].shape[-2])
    more = [values(shape, inputs[0].dtype, -1, 1, 7)] if bias and not causal else []
    if causal and bias:
        scale = 0.125
    return Sample(
        [*inputs, *more],
        lambda ops, q, k, v, b=None: ops.sdpfa_fwd(q, k, v, b, is_causal=causal, scale=scale)[:2],
        lambda q, k, v, b=None: tuple(t.to(w) for t, w in zip(_attention(q, k, v, b, causal, scale), (q.dtype, F32), strict=True)),
    )


@row("sdpfa_bwd")
def _sdpfa_bwd(p: Pick) -> Sample:
    inputs = _qkv(p, p.of("dtype", F32, F64))
    causal, scale = p.of("is_causal", None, True), p.of("scale", None, 0.25)
    grad = values(inputs[0].shape, inputs[0].dtype, -1, 1, 3)

    def build(ops: Any, g: Any, q: Any, k: Any, v: Any) -> Any:
        out, lse, seed, offset = ops.sdpfa_fwd(q, k, v, is_causal=causal, scale=scale)
        return ops.sdpfa_bwd(g, q, k, v, out, lse, None, causal, seed, offset, scale)

    def run(g: Tensor, *qkv: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.double().requires_grad_() for t in qkv]
        _attention(*leaves, None, causal, scale)[0].backward(g.double())
        return tuple(t.grad.to(g.dtype) for t in leaves)  # type: ignore[union-attr]

    return Sample([grad, *inputs], build, run, near=1e-6)  # what is handed from forward to backward is a float, whatever the type


# ---- shapes ---------------------------------------------------------------------------------------------------------------------------------


@row("broadcast")
def _broadcast(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(ranks=(2, 0, 1, 3)), p.of("dtype", *ALL))
    flags = p.of("flags", *[[i == new for i in range(x.ndim + 1)] for new in range(x.ndim + 1)], [True, *[False] * x.ndim, True])

    def run(x: Tensor) -> Tensor:
        for d, new in enumerate(flags):
            x = x.unsqueeze(d) if new else x
        return x

    return Sample([x], lambda ops, x: ops.broadcast(x, list(flags)), run, exact=True)


@row("broadcast_in_dim")
def _broadcast_in_dim(p: Pick) -> Sample:
    shape, dtype, thin = p.shape(ranks=(2, 0, 1, 3)), p.of("dtype", *ALL), p.of("thin", False, True)
    own = (*shape[:-1], 1) if thin and shape else shape
    new, at = p.of("new", 5, 1, 0), p.of("at", *range(len(shape) + 1))
    wanted, dims = [*shape[:at], new, *shape[at:]], [d for d in range(len(shape) + 1) if d != at]
    return Sample(
        [p.tensor("x", own, dtype)],
        lambda ops, x: ops.broadcast_in_dim(x, wanted, dims),
        lambda x: x.unsqueeze(at).expand(wanted),
        exact=True,
    )


@row("expand")
def _expand(p: Pick) -> Sample:
    shape, dtype, thin = p.shape(ranks=(2, 0, 1, 3)), p.of("dtype", *ALL), p.of("thin", True, False)
    own = (*shape[:-1], 1) if thin and shape else shape
    wanted = [*p.of("in front", [], [5], [1], [2, 0]), *shape]
    spelled = [p.free(s, -1) if i >= len(wanted) - len(own) and own[i - len(wanted)] == s else s for i, s in enumerate(wanted)]
    return Sample([p.tensor("x", own, dtype)], lambda ops, x: ops.expand(x, spelled), lambda x: x.expand(wanted), exact=True)


@row("reshape")
def _reshape(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(), p.of("dtype", *ALL))
    count, shape = x.numel(), list(x.shape)
    wanted = p.of("shape", [count], [1, count], [*shape, 1], shape[::-1], [*shape[:-2], count // max(math.prod(shape[:-2]), 1)])
    spelled = p.free(wanted, [-1 if i == 0 else n for i, n in enumerate(wanted)]) if count and wanted else wanted
    return Sample([x], lambda ops, x: ops.reshape(x, spelled), lambda x: x.reshape(wanted), exact=True)


@row("permute")
def _permute(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(), p.of("dtype", *ALL))
    order = list(range(x.ndim))
    dims = p.of("dims", order[::-1], order, order[1:] + order[:1])
    spelled = p.free(dims, [d - x.ndim for d in dims])
    return Sample([x], lambda ops, x: ops.permute(x, spelled), lambda x: x.permute(dims), exact=True)


@row("squeeze")
def _squeeze(p: Pick) -> Sample:
    shape, dtype = p.shape(ranks=(2, 0, 1, 3)), p.of("dtype", *ALL)
    at, size = p.of("at", *range(len(shape) + 1)), p.of("size", 1, 3)
    x = p.tensor("x", (*shape[:at], size, *shape[at:]), dtype)
    spelled = p.free(at, at - x.ndim)
    return Sample([x], lambda ops, x: ops.squeeze(x, [spelled], size != 1), lambda x: x.select(at, 0), exact=True)


@row("slice")
def _slice(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(), p.of("dtype", *ALL))
    cuts = [p.of(f"cut {d}", (min(1, n), n), (0, n), (0, max(n - 1, 0)), (n // 2, n), (n // 2, n // 2)) for d, n in enumerate(x.shape)]
    starts = [a for a, _ in cuts]
    ends = [b if b < n else p.free(b, b + 5) for (_, b), n in zip(cuts, x.shape, strict=True)]
    strides = p.free(None, [1] * x.ndim)
    return Sample([x], lambda ops, x: ops.slice(x, starts, ends, strides), lambda x: x[tuple(slice(a, b) for a, b in cuts)], exact=True)


@row("cat")
def _cat(p: Pick) -> Sample:
    shape, dtype = p.shape(ranks=(2, 1, 3, 4)), p.of("dtype", *ALL)
    dim = p.of("dim", *range(len(shape)))
    lengths = p.of("lengths", (2,), (0,), (1, 5), (shape[dim],))
    others = [tuple(n if d == dim else s for d, s in enumerate(shape)) for n in lengths]
    inputs = [p.tensor(f"x{i}", s, dtype) for i, s in enumerate((shape, *others))]
    spelled = p.free(dim, dim - len(shape))
    same = len(lengths) == 1 and lengths[0] == shape[dim]
    return Sample(inputs, lambda ops, *xs: ops.cat(list(xs), spelled), lambda *xs: torch.cat(xs, dim), exact=True, swaps=same)


@row("pad")
def _pad(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(ranks=(2, 1, 3, 4)), p.of("dtype", *ALL))
    widths = list(p.of("last", (1, 2), (0, 0), (0, 3), *([(-1, 1)] if x.shape[-1] else [])))
    if x.ndim > 1:
        widths += p.of("before it", (2, 0), (), (0, 1))
    value = p.of("value", None, number(x.dtype))

    def run(x: Tensor) -> Tensor:
        fill = 0 if value is None else value
        shape, cut, place = list(x.shape), [slice(None)] * x.ndim, [slice(None)] * x.ndim
        for i in range(0, len(widths), 2):
            d, (before, after) = x.ndim - 1 - i // 2, widths[i : i + 2]
            cut[d] = slice(max(-before, 0), None)
            place[d] = slice(max(before, 0), max(before, 0) + x.shape[d] - max(-before, 0))
            shape[d] += before + after
        out = torch.full(shape, fill, dtype=x.dtype)
        out[tuple(place)] = x[tuple(cut)]
        return out

    return Sample([x], lambda ops, x: ops.pad(x, widths, value), run, exact=True)


@row("stride_order")
def _stride_order(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(), p.of("dtype", *ALL))
    ranks = list(range(x.ndim))
    order = p.of("order", ranks, ranks[::-1], ranks[1:] + ranks[:1])
    return Sample([x], lambda ops, x: ops.stride_order(x, order), torch.clone, exact=True)


# ---- indices, sorting, scans ------------------------------------------------------------------------------------------------------------------


def _scan_function(name: str) -> Callable[..., Tensor]:
    return lambda x, d: getattr(torch, name)(x, d).values if name in ("cummax", "cummin") else getattr(torch, name)(x, d, dtype=x.dtype)


@row("cumsum", "cumprod", "cummax", "cummin")
def _scan(name: str, p: Pick) -> Sample:
    ordered = name in ("cummax", "cummin")
    x_shape, dtype = p.shape(ranks=(2, 1, 3, 4)), p.of("dtype", *FLOATS, I64, I32, *(() if ordered else (C64, C128)))
    dim, init = p.of("dim", *range(len(x_shape))), p.of("init", None, 2)
    low, high = (0.75, 1.25) if name == "cumprod" and dtype.is_floating_point else (-2, 2)
    x, spelled = p.tensor("x", x_shape, dtype, low, high), p.free(dim, dim - len(x_shape))

    def run(x: Tensor) -> Tensor:
        out = _scan_function(name)(x, dim)
        if init is None:
            return out
        wide, start = out.float() if out.dtype in HALVES else out, torch.tensor(init, dtype=F32 if dtype in HALVES else dtype)
        joined = {"cumsum": torch.add, "cumprod": torch.mul, "cummax": torch.maximum, "cummin": torch.minimum}[name](wide, start)
        return joined.to(dtype)

    return Sample([x], lambda ops, x: getattr(ops, name)(x, spelled, init), run)


def _index(p: Pick, shape: Sequence[int], below: int) -> Tensor:
    return p.tensor("index", shape, p.of("index type", I64, I32), 0, below - 1)


@row("index_select")
def _index_select(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(ranks=(2, 1, 3, 4), least=1), p.of("dtype", *ALL))
    dim, count = p.of("dim", *range(x.ndim)), p.of("count", (5,), (0,), (1,), ())
    index = _index(p, count, x.shape[dim])
    return Sample([x, index], lambda ops, x, i: ops.index_select(x, i, dim), lambda x, i: x.index_select(dim, i), exact=True)


@row("select")
def _select(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(ranks=(2, 1, 3, 4), least=1), p.of("dtype", *ALL))
    dim = p.of("dim", *range(x.ndim))
    at = p.of("at", 0, x.shape[dim] - 1, x.shape[dim] // 2)
    spelled = p.free(at, at - x.shape[dim])
    return Sample([x], lambda ops, x: ops.select(x, spelled, dim), lambda x: x.select(dim, at), exact=True)


@row("gather", "take_along_axis")
def _gather(name: str, p: Pick) -> Sample:
    x = p.tensor("x", p.shape(ranks=(2, 1, 3, 4), least=1), p.of("dtype", *ALL))
    dim, count = p.of("dim", *range(x.ndim)), p.of("count", 5, 0, 1)
    others = p.of("others", "same", *(["shorter"] if x.ndim > 1 else []))
    shape = [count if d == dim else n if others == "same" else 1 for d, n in enumerate(x.shape)]
    index = _index(p, shape, x.shape[dim])
    function = torch.gather if name == "gather" else lambda x, d, i: torch.take_along_dim(x, i, d)
    return Sample([x, index], lambda ops, x, i: getattr(ops, name)(x, i, dim), lambda x, i: function(x, dim, i.long()), exact=True)


@row("scatter")
def _scatter(p: Pick) -> Sample:
    shape, dtype = p.shape(ranks=(2, 1, 3, 4), least=1), p.of("dtype", *ALL)
    dim = p.of("dim", *range(len(shape)))
    x, number_src = p.tensor("x", shape, dtype), p.of("source", False, True)
    order = torch.randperm(shape[dim], generator=torch.Generator().manual_seed(p.free(*range(9))))
    index = order.to(p.of("index type", I64, I32)).reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape).contiguous()
    src = [] if number_src else [p.tensor("source", shape, dtype)]
    value = number(dtype)
    return Sample(
        [x, index, *src],
        lambda ops, x, i, s=value: ops.scatter(x, i, s, dim),
        lambda x, i, s=value: torch.scatter(x, dim, i.long(), s),
        exact=True,
    )


@row("embedding_fwd")
def _embedding(p: Pick) -> Sample:
    rows, width = p.size("rows", 6, least=1), p.size("width", 4)
    weight = p.tensor("weight", (rows, width), p.of("dtype", F32, F64, BF16))
    index = _index(p, p.shape("index", ranks=(2, 1, 3)), rows)
    norm, power = p.of("max_norm", None, 1.0, 2.0), 2.0
    if norm is not None:
        power = p.of("norm_type", 2.0, 1.0)
    given = () if norm is None else (None, norm, power)
    run = lambda i, w: F.embedding(i.long(), w.clone(), max_norm=norm, norm_type=power)  # noqa: E731
    return Sample([index, weight], lambda ops, i, w: ops.embedding_fwd(i, w, *given), run)


def _distinct(p: Pick, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    count = math.prod(shape)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(p.free(*range(9))))
    x = (order - count // 2).to(dtype).reshape(shape)
    return x if p.of("layout", *(["dense", "permuted"] if len(shape) > 1 else ["dense"])) == "dense" else x.mT.contiguous().mT


@row("topk")
def _topk(p: Pick) -> Sample:
    shape, dtype = p.shape(ranks=(2, 1, 3, 4), least=1), p.of("dtype", F32, F64, I64, I32)
    dim = p.of("dim", *range(len(shape)))
    k = p.of("k", 1, 0, shape[dim])
    largest, ordered = p.of("largest", True, False), p.of("sorted", True, False)
    x = _distinct(p, shape, dtype)
    return Sample([x], lambda ops, x: ops.topk(x, k, dim, largest, ordered), lambda x: tuple(torch.topk(x, k, dim, largest, ordered)), exact=True)


@row("argsort")
def _argsort(p: Pick) -> Sample:
    shape, dtype = p.shape(ranks=(2, 0, 1, 3, 4)), p.of("dtype", F32, F64, I64, I32)
    dim = p.of("dim", *range(max(len(shape), 1)))
    down, stable = p.of("descending", False, True), p.of("stable", False, True)
    x = _distinct(p, shape, dtype)
    return Sample(
        [x], lambda ops, x: ops.argsort(x, dim, down, stable), lambda x: torch.argsort(x, dim=dim, descending=down, stable=stable), exact=True
    )


# ---- random numbers, factories, sizes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """What a random op without a seed may give."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float = -math.inf
    high: float = math.inf


@row("uniform", "normal")
def _random(name: str, p: Pick) -> Sample:
    shape, dtype = p.shape(), p.of("dtype", *FLOATS)
    a, b = p.of("first", 0.25, -1.0), p.of("second", 2.0, 3.0)
    seed, offset = p.of("seed", 11, 12), p.of("offset", 4, 0)

    def build(ops: Any) -> Any:
        return getattr(ops, name)(a, b, list(shape), rng_seed=seed, rng_offset=offset, dtype=kind(dtype))

    return Sample([], build, lambda: generate(name, dtype, shape, a, b, seed, offset))


@row("rand_like", "randn_like")
def _random_like(name: str, p: Pick) -> Sample:
    x = p.tensor("x", p.shape(), p.of("dtype", *FLOATS))
    ends = (0.0, 1.0) if name == "rand_like" else (-20.0, 20.0)
    return Sample([x], lambda ops, x: getattr(ops, name)(x), lambda x: Drawn(tuple(x.shape), x.dtype, *ends))


@row("full")
def _full(p: Pick) -> Sample:
    shape, dtype = list(p.shape()), p.of("dtype", *ALL)
    value = p.of("value", number(dtype), False if dtype is BOOL else 0)
    return Sample([], lambda ops: ops.full(shape, value, kind(dtype)), lambda: torch.full(shape, value, dtype=dtype), exact=True)


@row("iota")
def _iota(p: Pick) -> Sample:
    length, dtype = p.size("length", 4), p.of("dtype", I64, I32, F32, F64)
    start, step = p.of("start", 0, 3, -2), p.of("step", 1, 2, -3)
    run = lambda: (torch.arange(length, dtype=F64) * step + start).to(dtype)  # noqa: E731
    return Sample([], lambda ops: ops.iota(length, start, step, kind(dtype)), run, exact=True)


@row("size")
def _size(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(ranks=(2, 1, 3, 4)), p.of("dtype", F32, F64, I64))
    dim = p.of("dim", *range(x.ndim))
    spelled = p.free(dim, dim - x.ndim)
    return Sample([x], lambda ops, x: ops.mul(x, ops.size(x, spelled)), lambda x: x * x.shape[dim])


@row("shape")
def _shape(p: Pick) -> Sample:
    x = p.tensor("x", p.shape(), p.of("dtype", F32, F64, I64))
    return Sample([x], lambda ops, x: ops.full(ops.shape(x), 2.0, DataType.Float), lambda x: torch.full(x.shape, 2.0), exact=True)


@row(*NOT_ON_THIS_DEVICE)
def _narrow(name: str, p: Pick) -> Sample:
    given = TABLE[name].signature.partition("(")[2].rstrip(")").split(", ")
    needed = sum("=" not in word for word in given)
    return Sample([torch.ones(16, 16)], lambda ops, x: getattr(ops, name)(*[x] * needed), lambda x: None)
