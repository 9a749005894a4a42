"""Random numbers: Philox 4x32-10 by *global* element index, so that a shard holds what the whole tensor holds there.

The generator is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Element i of a tensor takes
`w` of the words that the counter (i * w // 4, offset, stream) gives under the key (seed): one for a uniform number of 24 bits, two for one of
53 bits or a normal one, four for a normal one in double.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from interfuse.errors import ArgumentTypeError, DtypeError, ShapeError
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Const, Random, Scalar, ScalarInput, Tensor
from interfuse.ir.sizes import Size
from interfuse.ops.build import Builder, cast

RNG_SEED, RNG_OFFSET = ScalarInput("rng_seed", DataType.Int), ScalarInput("rng_offset", DataType.Int)  # drawn once per call

_CHUNK = 1 << 14  # counters that are worked on at a time, so that they stay in cache
_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_SIGN = 1 << 63

# ---- the generator --------------------------------------------------------------------------------------------------------------------------


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that has it."""
    value %= 1 << 64
    return value - (1 << 64) if value >= _SIGN else value


def philox(counter: torch.Tensor, offset: int, seed: int, stream: int = 0) -> torch.Tensor:
    """The four 32-bit words of every counter, int64 [n, 4] for int64 [n]."""
    high = (offset >> 32) & _LOW ^ (stream * _WEYL[0]) & _LOW
    c0, c1 = counter & _LOW, (counter >> 32) & _LOW
    c2, c3 = torch.full_like(counter, offset & _LOW), torch.full_like(counter, high)
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(10):
        first, second = c0 * _signed(_MULTIPLIERS[0]), c2 * _signed(_MULTIPLIERS[1])
        c0 = (second >> 32).bitwise_and_(_LOW).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = (first >> 32).bitwise_and_(_LOW).bitwise_xor_(c3).bitwise_xor_(k1)
        c1, c3 = second.bitwise_and_(_LOW), first.bitwise_and_(_LOW)
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return torch.stack((c0, c1, c2, c3), 1)


def _words(begin: int, end: int, each: int, seed: int, offset: int, stream: int) -> torch.Tensor:
    """The words of elements `begin` to `end`, int64 [end - begin, each]."""
    first, last = begin * each // 4, -(-end * each // 4)
    words = philox(torch.arange(first, last, dtype=torch.int64), offset, seed, stream).reshape(-1, each)
    skipped = begin - first * 4 // each
    return words[skipped : skipped + end - begin]


def _scattered(index: torch.Tensor, each: int, seed: int, offset: int, stream: int) -> torch.Tensor:
    """The words of any elements, int64 [n, each]."""
    per_counter = 4 // each
    words = philox(index // per_counter, offset, seed, stream).reshape(-1, per_counter, each)
    return words[torch.arange(index.numel()), index % per_counter]


# ---- from words to numbers --------------------------------------------------------------------------------------------------------------------


def _uniform(words: torch.Tensor, dtype: torch.dtype, a: float, b: float) -> torch.Tensor:
    """[a, b): a rounding that would give b gives the number below it."""
    if dtype is torch.float64:
        unit = ((words[:, 0] << 21) | (words[:, 1] >> 11)).double().mul_(2.0**-53)
    else:
        unit = (words[:, 0] >> 8).float().mul_(2.0**-24)
    result = unit.mul_(b - a).add_(a).to(dtype)
    if a == b:
        return result
    upper = torch.tensor(b, dtype=dtype)
    below = torch.nextafter(upper, torch.tensor(a, dtype=dtype))
    return torch.where(result >= upper if b > a else result <= upper, below, result)


def _normal(words: torch.Tensor, dtype: torch.dtype, a: float, b: float) -> torch.Tensor:
    """Box and Muller's transform, one number of every pair."""
    if dtype is torch.float64:
        first = ((words[:, 0] << 21) | (words[:, 1] >> 11)).double().add_(1).mul_(2.0**-53)
        angle = ((words[:, 2] << 21) | (words[:, 3] >> 11)).double().mul_(2 * math.pi * 2.0**-53)
    else:
        first = (words[:, 0] >> 8).float().add_(1).mul_(2.0**-24)
        angle = (words[:, 1] >> 8).float().mul_(2 * math.pi * 2.0**-24)
    return first.log_().mul_(-2).sqrt_().mul_(angle.cos_()).mul_(b).add_(a).to(dtype)


def generate(
    kind: str, dtype: torch.dtype, shape: Sequence[int], a: float, b: float, seed: int, offset: int, stream: int = 0,
    whole: Sequence[int] | None = None, starts: Sequence[int] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Numbers of the block of `shape` that begins at `starts` in a tensor of shape `whole`; by default the whole of it."""
    whole, starts = tuple(shape if whole is None else whole), tuple([0] * len(shape) if starts is None else starts)
    numbers = _uniform if kind == "uniform" else _normal
    each = (2 if dtype is torch.float64 else 1) * (2 if kind == "normal" else 1)
    out = torch.empty(math.prod(shape), dtype=dtype)
    if not out.numel():
        return out.view(tuple(shape))
    cut = next((d for d in reversed(range(len(shape))) if shape[d] != whole[d]), 0)  # behind this dim the block is contiguous in the whole
    index = _indices(shape, whole, starts)
    contiguous = all(n == 1 for n in shape[:cut])
    step = _CHUNK * 4 // each if contiguous else _CHUNK
    for begin in range(0, out.numel(), step):
        end = min(begin + step, out.numel())
        if contiguous:
            first = int(index(begin, begin + 1))
            words = _words(first, first + end - begin, each, seed, offset, stream)
        else:
            words = _scattered(index(begin, end), each, seed, offset, stream)
        out[begin:end] = numbers(words, dtype, a, b)
    return out.view(tuple(shape))


def _indices(shape: Sequence[int], whole: Sequence[int], starts: Sequence[int]):  # type: ignore[no-untyped-def]
    """Global row-major indices of a block's elements by their local ones, `begin` to `end`."""

    def index(begin: int, end: int) -> torch.Tensor:
        rest = torch.arange(begin, end, dtype=torch.int64)
        total, stride = torch.zeros_like(rest), 1
        for d in reversed(range(len(shape))):
            total += (rest % shape[d] + starts[d]) * stride
            rest = rest // shape[d]
            stride *= whole[d]
        return total

    return index


# ---- ops --------------------------------------------------------------------------------------------------------------------------------------


def _random(
    b: Builder, kind: str, first: Scalar, second: Scalar, shape: Sequence[Size], rng_seed: Scalar | None, rng_offset: Scalar | None, dtype: DataType
) -> Tensor:
    if not dtype.is_float:
        raise DtypeError(f"{kind}: random numbers are floating, not {dtype.short}")
    if (rng_seed is None) != (rng_offset is None):
        raise ArgumentTypeError(f"{kind}: rng_seed and rng_offset are given together or not at all")
    bad = [s for s in shape if isinstance(s, int) and s < 0]
    if bad:
        raise ShapeError(f"{kind}: {bad[0]} is not a size")
    stream = 0
    if rng_seed is None or rng_offset is None:
        rng_seed, rng_offset, stream = RNG_SEED, RNG_OFFSET, b.random_stream()
    lower, upper = cast(b, first, DataType.Double), cast(b, second, DataType.Double)
    assert not isinstance(lower, Tensor) and not isinstance(upper, Tensor)
    out = b.new(shape, dtype)
    return b.emit(Random(out, kind, lower, upper, rng_seed, rng_offset, stream, out.shape, (0,) * out.ndim))


def uniform(
    b: Builder, minval: Scalar, maxval: Scalar, shape: Sequence[Size], *,
    rng_seed: Scalar | None = None, rng_offset: Scalar | None = None, dtype: DataType = DataType.Float,
) -> Tensor:  # fmt: skip
    """Numbers in [minval, maxval)."""
    return _random(b, "uniform", minval, maxval, shape, rng_seed, rng_offset, dtype)


def normal(
    b: Builder, mean: Scalar, std: Scalar, shape: Sequence[Size], *,
    rng_seed: Scalar | None = None, rng_offset: Scalar | None = None, dtype: DataType = DataType.Float,
) -> Tensor:  # fmt: skip
    return _random(b, "normal", mean, std, shape, rng_seed, rng_offset, dtype)


_ZERO, _ONE = Const(0.0, DataType.Double), Const(1.0, DataType.Double)


def rand_like(b: Builder, x: Tensor) -> Tensor:
    return _random(b, "uniform", _ZERO, _ONE, x.shape, None, None, x.dtype)


def randn_like(b: Builder, x: Tensor) -> Tensor:
    return _random(b, "normal", _ZERO, _ONE, x.shape, None, None, x.dtype)
