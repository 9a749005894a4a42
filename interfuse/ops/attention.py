"""Scaled dot-product attention as ATen computes it: the flash kernels, and plain matrix products where dropout is asked for.

Forward gives (out, logsumexp in float, seed u64[2], offset u64[]), of which the last two are the key of the dropout mask; backward takes them.
Tensors are [batch, heads, length, head size], or [devices, batch, heads, length, head size].
"""

from __future__ import annotations

import math

import torch

from interfuse.errors import DtypeError, ShapeError
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import Aten, AtenOp, Const, Scalar, Tensor, operands
from interfuse.ir.sizes import Size
from interfuse.ops.build import Builder, cast, dims_text
from interfuse.ops.random import RNG_OFFSET, RNG_SEED, generate

Letters = tuple[int | None, ...]

# ---- what runs ------------------------------------------------------------------------------------------------------------------------------


def _mask(bias: torch.Tensor | None, mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """What is added to the scores."""
    if mask is None:
        return bias
    added = torch.where(mask, 0.0, float("-inf")).to(dtype)
    return added if bias is None else (bias + added).to(dtype)


def _kept(shape: tuple[int, ...], dropout_p: float, seed: int, offset: int) -> torch.Tensor:
    """Which scores survive, with their scale: 0 or 1 / (1 - p)."""
    if dropout_p >= 1:
        return torch.zeros(shape)
    numbers = generate("uniform", torch.float32, shape, 0.0, 1.0, seed, offset)
    return (numbers >= dropout_p).float().div_(1 - dropout_p)


def _probabilities(q: torch.Tensor, k: torch.Tensor, added: torch.Tensor | None, is_causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax of the scores and their log-sum-exp, in float."""
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if is_causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1), float("-inf"))
    if added is not None:
        scores = scores + added.float()
    return torch.softmax(scores, -1), torch.logsumexp(scores, -1)


def _flat(t: torch.Tensor) -> torch.Tensor:
    return t if t.ndim == 4 else t.reshape(-1, *t.shape[2:])


def _has_flash(tensors: list[torch.Tensor]) -> bool:
    """Whether the device's own flash kernels take these; they draw their dropout from the device's generator."""
    widths = {t.shape[-1] for t in tensors}
    half = tensors[0].dtype in (torch.float16, torch.bfloat16)
    return tensors[0].is_cuda and half and len(widths) == 1 and widths.pop() % 8 == 0 and all(t.numel() for t in tensors)


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor | float, has_bias: bool, has_mask: bool, has_scale: bool
) -> tuple[torch.Tensor, ...]:
    given = list(rest)
    bias = given.pop(0) if has_bias else None
    mask = given.pop(0) if has_mask else None
    dropout_p, is_causal = float(given.pop(0)), bool(given.pop(0))
    scale = float(given.pop(0)) if has_scale else 1 / math.sqrt(q.shape[-1])
    seed, offset = (int(given.pop(0)), int(given.pop(0))) if given else (0, 0)
    assert not isinstance(bias, float) and not isinstance(mask, float)
    added = _mask(bias, mask, q.dtype)
    flat = [_flat(t) for t in (q, k, v)]
    added = added if added is None else _flat(added)
    if added is None and _has_flash(flat):
        out, lse, _, _, _, _, drawn, rest_of_key, _ = torch.ops.aten._scaled_dot_product_flash_attention(*flat, dropout_p, is_causal, scale=scale)
        return out.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1]), drawn, rest_of_key
    if q.device.type == "cpu" and dropout_p == 0 and q.shape[-1] == v.shape[-1] and all(t.numel() for t in flat):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*flat, 0.0, is_causal, attn_mask=added, scale=scale)
    else:
        p, lse = _probabilities(flat[0], flat[1], added, is_causal, scale)
        kept = _kept(p.shape, dropout_p, seed, offset) if dropout_p else None
        out = torch.matmul(p if kept is None else p * kept, flat[2].float()).to(q.dtype)
    key = torch.tensor([seed, 0]).view(torch.uint64), torch.tensor(offset).view(torch.uint64)
    return out.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1]), *key


def _backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, seed: torch.Tensor,
    offset: torch.Tensor, dropout_p: float, is_causal: bool, *scales: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    scale = float(scales[0]) if scales else 1 / math.sqrt(q.shape[-1])
    flat = [_flat(t) for t in (grad, q, k, v, out)]
    if _has_flash(flat):
        lengths = (None, None, q.shape[-2], k.shape[-2])  # no packed sequences
        grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *flat, lse.reshape(flat[1].shape[:-1]), *lengths, float(dropout_p), bool(is_causal), seed, offset, scale=scale
        )
        return tuple(g.reshape(t.shape).to(t.dtype) for g, t in zip(grads, (q, k, v), strict=True))
    if q.device.type == "cpu" and dropout_p == 0 and q.shape[-1] == v.shape[-1] and all(t.numel() for t in flat):
        dense = lse.reshape(flat[1].shape[:-1]).to(torch.promote_types(q.dtype, torch.float32))  # ATen's own logsumexp of doubles is double
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*flat, dense, 0.0, bool(is_causal), scale=scale)
    else:
        key = int(seed.view(torch.int64).flatten()[0]), int(offset.view(torch.int64))
        grads = _plain_backward(flat[0], flat[1], flat[2], flat[3], float(dropout_p), bool(is_causal), scale, *key)
    return tuple(g.reshape(t.shape).to(t.dtype) for g, t in zip(grads, (q, k, v), strict=True))


def _plain_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, is_causal: bool, scale: float, seed: int, offset: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p, _ = _probabilities(q, k, None, is_causal, scale)
    g = grad.float()
    kept = _kept(p.shape, dropout_p, seed, offset) if dropout_p else torch.ones_like(p)
    dp = torch.matmul(g, v.float().transpose(-1, -2)) * kept
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return torch.matmul(ds, k.float()), torch.matmul(ds.transpose(-1, -2), q.float()), torch.matmul((p * kept).transpose(-1, -2), g)


# ---- letters ----------------------------------------------------------------------------------------------------------------------------------


def _forward_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Batch and heads follow, and the query's length where each row is on its own; nothing does under dropout, whose mask counts all scores."""
    tensors = operands(node)
    n = tensors[0].ndim
    free = not _drops(node)
    batch: Letters = tuple(range(n - 2)) if free else (None,) * (n - 2)
    rows = n if free and not _may_be_causal(node) else None
    out: tuple[Letters, ...] = ((*batch, rows, None), (*batch, rows), (None,), ())
    ins = [(*batch, rows, None), (*batch, None, None), (*batch, None, None)]
    for t in tensors[3:]:
        ins.append((*(None if t.shape[d] == 1 else letter for d, letter in enumerate(batch)), None if t.shape[-2] == 1 else rows, None))
    return tuple(ins), out[node.result]


def _backward_dims(node: Aten) -> tuple[tuple[Letters, ...], Letters]:
    """Batch and heads follow."""
    n = node.out.ndim
    batch: Letters = tuple(range(n - 2)) if not _drops(node) else (None,) * (n - 2)
    row = (*batch, None, None)
    return (row, row, row, row, row, (*batch, None), (None,) * operands(node)[6].ndim, ()), row


def _flags(node: Aten) -> tuple[Scalar, Scalar]:
    """dropout_p and is_causal."""
    scalars = [a for a in node.args if not isinstance(a, Tensor)]
    return scalars[0], scalars[1]


def _drops(node: Aten) -> bool:
    p, _ = _flags(node)
    return not (isinstance(p, Const) and p.value == 0)


def _may_be_causal(node: Aten) -> bool:
    _, causal = _flags(node)
    return not (isinstance(causal, Const) and not causal.value)


FORWARD = AtenOp("sdpfa_fwd", _forward, _forward_dims, results=4, strided=True)
BACKWARD = AtenOp("sdpfa_bwd", _backward, _backward_dims, results=3, strided=True)

# ---- ops --------------------------------------------------------------------------------------------------------------------------------------


def _check(b: Builder, what: str, tensors: tuple[Tensor, ...]) -> None:
    q = tensors[0]
    for t in tensors:
        if t.dtype is not q.dtype:
            raise DtypeError(f"{what}: operands are {q.dtype.short} and {t.dtype.short}; cast one")
        if t.ndim not in (4, 5) or t.ndim != q.ndim:
            raise ShapeError(f"{what}: {dims_text(t.shape)} is not [batch, heads, length, head size], or the same behind a dim of devices")
    if not q.dtype.is_float:
        raise DtypeError(f"{what}: takes floating tensors, not {q.dtype.short}")


def _same(b: Builder, a: Size, c: Size, what: str) -> None:
    if sizes.known_equal(a, c) is False:
        raise ShapeError(f"{what}: {a} and {c} differ")
    if a != c:
        b.require_equal(a, c, what)


def _flag(b: Builder, value: Scalar | None, default: float | bool, dtype: DataType) -> Scalar:
    scalar = Const(default, dtype) if value is None else cast(b, value, dtype)
    assert not isinstance(scalar, Tensor)
    return scalar


def sdpfa_fwd(
    b: Builder, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, dropout_p: Scalar | None = None,
    is_causal: Scalar | None = None, scale: Scalar | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(out in the query's layout, logsumexp, seed, offset). `bias` is added to the scores, False in `mask` takes a score out."""
    _check(b, "sdpfa_fwd", (query, key, value))
    for d in range(query.ndim - 2):
        _same(b, query.shape[d], key.shape[d], f"sdpfa_fwd: dim {d} of query and key")
    _same(b, query.shape[-1], key.shape[-1], "sdpfa_fwd: head sizes of query and key")
    for d in range(query.ndim - 1):
        _same(b, key.shape[d], value.shape[d], f"sdpfa_fwd: dim {d} of key and value")
    if mask is not None and mask.dtype is not DataType.Bool:
        raise DtypeError(f"sdpfa_fwd: the mask is {mask.dtype.short}, not bool")
    for t in (bias, mask):
        if t is not None and t.ndim != query.ndim:
            raise ShapeError(f"sdpfa_fwd: bias or mask {dims_text(t.shape)} has another number of dims than the query {dims_text(query.shape)}")
    p = _flag(b, dropout_p, 0.0, DataType.Double)
    scalars = [p, _flag(b, is_causal, False, DataType.Bool), *([] if scale is None else [_flag(b, scale, 0.0, DataType.Double)])]
    if not (isinstance(p, Const) and p.value == 0):
        scalars += [RNG_SEED, RNG_OFFSET]
    args = (query, key, value, *(t for t in (bias, mask) if t is not None), *scalars)
    attrs = (("has_bias", bias is not None), ("has_mask", mask is not None), ("has_scale", scale is not None))
    rows = query.shape[:-1]
    results = (((*rows, value.shape[-1]), query.dtype), (rows, DataType.Float), ((2,), DataType.UInt64), ((), DataType.UInt64))
    return tuple(b.emit(Aten(b.new(shape, dtype), FORWARD, args, attrs, i)) for i, (shape, dtype) in enumerate(results))


def sdpfa_bwd(
    b: Builder, grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor, dropout_p: Scalar | None,
    is_causal: Scalar | None, philox_seed: Tensor, philox_offset: Tensor, scale: Scalar | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of query, key and value."""
    _check(b, "sdpfa_bwd", (grad_output, query, key, value, output))
    scalars = [_flag(b, dropout_p, 0.0, DataType.Double), _flag(b, is_causal, False, DataType.Bool)]
    scalars += [] if scale is None else [_flag(b, scale, 0.0, DataType.Double)]
    args = (grad_output, query, key, value, output, logsumexp, philox_seed, philox_offset, *scalars)
    return tuple(b.emit(Aten(b.new(t.shape, t.dtype), BACKWARD, args, (), i)) for i, t in enumerate((query, key, value)))
