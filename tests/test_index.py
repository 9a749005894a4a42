"""Ops that look up, sort, scan, attend, move and reshape: against PyTorch, on one rank and split over two and three."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from interfuse import DataType, FusionDefinition, ParallelType
from interfuse.errors import ArgumentTypeError, DimOutOfRange, DtypeError, NotOnThisDevice, ReshapeCountError, ShapeError, ShapesDoNotBroadcast
from interfuse.ir.dtypes import from_torch
from interfuse.multidevice import DeviceMesh


def whole(*shape: int, high: int = 9) -> Tensor:
    return torch.randint(-high, high, shape, generator=torch.Generator().manual_seed(sum(shape))).float()


def index(*shape: int, below: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(sum(shape)))


Build = Callable[..., Any]

# name: ops, reference, inputs, and for every (input, dim) that may be split whether the result then needs no communication
CASES: dict[str, tuple[Build, Build, list[Tensor], dict[tuple[int, int], bool]]] = {
    "cumsum": (lambda fd, x: fd.ops.cumsum(x, 1), lambda x: x.cumsum(1), [whole(6, 5)], {(0, 0): True, (0, 1): False}),
    "cumprod": (lambda fd, x: fd.ops.cumprod(x, -1), lambda x: x.cumprod(-1), [whole(6, 5, high=3)], {(0, 0): True}),
    "cummax": (lambda fd, x: fd.ops.cummax(x, 0), lambda x: x.cummax(0).values, [whole(6, 5)], {(0, 1): True}),
    "cummin": (lambda fd, x: fd.ops.cummin(x, 0, 1.0), lambda x: x.cummin(0).values.clamp(max=1.0), [whole(6, 5)], {(0, 1): True}),
    "index_select": (
        lambda fd, x, i: fd.ops.index_select(x, i, 1),
        lambda x, i: x.index_select(1, i),
        [whole(6, 5), index(7, below=5)], {(0, 0): True, (1, 0): True, (0, 1): False},
    ),
    "select": (lambda fd, x: fd.ops.select(x, 2, 1), lambda x: x[:, 2], [whole(6, 5)], {(0, 0): True, (0, 1): False}),
    "gather": (
        lambda fd, x, i: fd.ops.gather(x, i, 0),
        lambda x, i: x.gather(0, i),
        [whole(6, 5), index(4, 5, below=6)], {(1, 0): True, (1, 1): False, (0, 0): False},
    ),
    "gather shorter": (
        lambda fd, x, i: fd.ops.gather(x, i, 0),
        lambda x, i: x.gather(0, i),
        [whole(6, 5), index(4, 3, below=6)], {(1, 0): True, (1, 1): False, (0, 1): False},
    ),
    "take_along_axis": (
        lambda fd, x, i: fd.ops.take_along_axis(x, i, 1),
        lambda x, i: torch.take_along_dim(x, i, 1),
        [whole(6, 5), index(1, 3, below=5)], {(0, 0): True, (1, 1): True},
    ),
    "scatter": (
        lambda fd, x, i, s: fd.ops.scatter(x, i, s, 1),
        lambda x, i, s: x.scatter(1, i, s),
        [whole(6, 5), torch.arange(5).flip(0).repeat(6, 1), whole(6, 5)], {(0, 1): False},
    ),
    "scatter a number": (
        lambda fd, x, i: fd.ops.scatter(x, i, 3.0, 1),
        lambda x, i: x.scatter(1, i, 3.0),
        [whole(6, 5), index(4, 2, below=5)], {(0, 0): False},
    ),
    "embedding": (
        lambda fd, i, w: fd.ops.embedding_fwd(i, w), F.embedding,
        [index(4, 3, below=8), whole(8, 6)], {(0, 0): True, (0, 1): True, (1, 1): True, (1, 0): False},
    ),
    "topk": (
        lambda fd, x: fd.ops.topk(x, 2, 1, True, True)[0],
        lambda x: x.topk(2, 1).values,
        [whole(6, 5)], {(0, 0): True, (0, 1): False},
    ),
    "argsort": (
        lambda fd, x: fd.ops.argsort(x, 0, False, True),
        lambda x: torch.argsort(x, dim=0, stable=True),
        [whole(6, 5)], {(0, 1): True, (0, 0): False},
    ),
    "segment_set": (
        lambda fd, x: fd.ops.neg(fd.ops.segment_set(fd.ops.neg(x))),
        lambda x: x,
        [whole(6, 5)], {(0, 0): True, (0, 1): True},
    ),
    "stride_order": (lambda fd, x: fd.ops.stride_order(fd.ops.neg(x), [0, 1]), lambda x: -x, [whole(6, 5)], {(0, 0): True, (0, 1): True}),
    "grouped_mm of k": (
        lambda fd, a, b, o: fd.ops.grouped_mm(a, b, o),
        lambda a, b, o: torch.stack([a[:, :2] @ b[:2], a[:, 2:] @ b[2:]]),
        [whole(6, 5), whole(5, 4), torch.tensor([2, 5])], {(0, 0): True, (1, 1): True, (0, 1): False},
    ),
    "grouped_mm of m": (
        lambda fd, a, b, o: fd.ops.grouped_mm(a, b, o),
        lambda a, b, o: torch.cat([a[:2] @ b[0], a[2:] @ b[1]]),
        [whole(6, 5), whole(2, 5, 4), torch.tensor([2, 6])], {(1, 2): True, (0, 1): False, (0, 0): False},
    ),
    "grouped_mm of n": (
        lambda fd, a, b, o: fd.ops.grouped_mm(a, b, o),
        lambda a, b, o: torch.cat([a[0] @ b[:, :3], a[1] @ b[:, 3:]], 1),
        [whole(2, 6, 5), whole(5, 4), torch.tensor([3, 4])], {(0, 1): True, (1, 1): False},
    ),
}  # fmt: skip


def define(fd: FusionDefinition, values: list[Tensor], symbolic: bool = False) -> list[Any]:
    shapes = [[-1 if symbolic and n != 1 else n for n in v.shape] for v in values]
    return [fd.define_tensor(s, dtype=from_torch(v.dtype)) for s, v in zip(shapes, values, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_one_rank_equals_pytorch(name: str) -> None:
    build, reference, values, _ = CASES[name]
    for symbolic in (False, True):
        with FusionDefinition() as fd:
            fd.add_output(build(fd, *define(fd, values, symbolic)))
        (out,) = fd.execute(values)
        torch.testing.assert_close(out, reference(*values))
        strided = [torch.stack([v, v], -1)[..., 1] for v in values]
        torch.testing.assert_close(fd.execute(strided)[0], reference(*values))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_split_dims_give_the_same(name: str, ranks: int) -> None:
    build, reference, values, splits = CASES[name]
    mesh = DeviceMesh(list(range(ranks)))
    for (which, dim), local in splits.items():
        with FusionDefinition() as fd:
            inputs = define(fd, values)
            fd.add_output(build(fd, *inputs))
            inputs[which].set_device_mesh(mesh)
            inputs[which].outer_split(dim, ranks)
            inputs[which].axis(dim).parallelize(ParallelType.mesh_x)
        (out,) = fd.simulate(values)
        torch.testing.assert_close(out, reference(*values), msg=f"{name}: input {which} split along {dim}")
        if local:
            assert not fd.explain().collectives, f"{name}: input {which} split along {dim} needs no communication"


# ---- attention --------------------------------------------------------------------------------------------------------------------------------


def _qkv(dtype: torch.dtype = torch.float32, e: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((2, 6, 5, e), (2, 6, 7, e), (2, 6, 7, e))]


@pytest.mark.parametrize("causal", [None, True])
@pytest.mark.parametrize("scale", [None, 0.1])
def test_attention_and_its_gradients(causal: bool | None, scale: float | None) -> None:
    values = [t.requires_grad_() for t in _qkv()]
    wanted = F.scaled_dot_product_attention(*values, is_causal=bool(causal), scale=scale)
    grad = torch.ones_like(wanted)
    wanted.backward(grad)
    with FusionDefinition() as fd:
        q, k, v, g = define(fd, [*values, grad])
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, is_causal=causal, scale=scale)
        for t in (out, lse, *fd.ops.sdpfa_bwd(g, q, k, v, out, lse, None, causal, seed, offset, scale)):
            fd.add_output(t)
    made, log, *grads = fd.execute([*(t.detach() for t in values), grad])
    torch.testing.assert_close(made, wanted.detach())
    assert log.shape == (2, 6, 5) and log.dtype == torch.float32
    for have, t in zip(grads, values, strict=True):
        torch.testing.assert_close(have, t.grad)


def test_attention_takes_bias_and_mask_and_keeps_the_layout() -> None:
    values = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in _qkv()]
    bias, mask = torch.randn(2, 6, 5, 7), torch.rand(2, 6, 5, 7) > 0.3
    with FusionDefinition() as fd:
        q, k, v, b, m = define(fd, [*values, bias, mask])
        fd.add_output(fd.ops.sdpfa_fwd(q, k, v, b, m)[0])
    (out,) = fd.execute([*values, bias, mask])
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*values, attn_mask=bias + torch.where(mask, 0.0, float("-inf"))))
    assert out.stride() == values[0].stride()


def test_dropout_is_undone_by_its_own_key() -> None:
    """The gradient of sum(out) by v is what dropout kept of the probabilities, summed over rows: both ways see one mask."""
    values = _qkv()
    with FusionDefinition() as fd:
        q, k, v = define(fd, values)
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, dropout_p=0.5)
        ones = fd.ops.full([2, 6, 5, 8], 1.0, DataType.Float)
        _, _, dv = fd.ops.sdpfa_bwd(ones, q, k, v, out, lse, 0.5, None, seed, offset)
        fd.add_output(out)
        fd.add_output(dv)
    torch.manual_seed(1)
    made, dv_ = fd.execute(values)
    torch.testing.assert_close((dv_ * values[2]).sum(), made.sum())
    torch.manual_seed(1)
    assert torch.equal(fd.execute(values)[0], made) and not torch.equal(fd.execute(values)[0], made)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_attention_over_split_heads_is_local(dim: int) -> None:
    values, mesh = _qkv(), DeviceMesh([0, 1])
    with FusionDefinition() as fd:
        inputs = define(fd, values)
        out, *_ = fd.ops.sdpfa_fwd(*inputs)
        fd.add_output(out)
        for t in inputs if dim < 2 else inputs[:1]:
            t.set_device_mesh(mesh)
            t.outer_split(dim, 2)
            t.axis(dim).parallelize(ParallelType.mesh_x)
    (made,) = fd.simulate(values)
    torch.testing.assert_close(made, F.scaled_dot_product_attention(*values))
    assert not fd.explain().collectives


# ---- scales -------------------------------------------------------------------------------------------------------------------------------------


def test_scaled_products() -> None:
    a, b, s1, s2 = whole(4, 6), whole(6, 3), torch.rand(4, 1), torch.rand(1, 3)
    with FusionDefinition() as fd:
        out, none, also_none = fd.ops.scaled_mm(*define(fd, [a, b, s1, s2]), dtype=DataType.Float)
        fd.add_output(out)
    torch.testing.assert_close(fd.execute([a, b, s1, s2])[0], (a * s1) @ (b * s2))
    assert none is None and also_none is None
    blocks = [torch.rand(4, 2), torch.rand(3, 2)]
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.scaled_mm(*define(fd, [a, b, *blocks]), dtype=DataType.Float)[0])
    wanted = (a * blocks[0].repeat_interleave(3, 1)) @ (b * blocks[1].repeat_interleave(3, 1).t())
    torch.testing.assert_close(fd.execute([a, b, *blocks])[0], wanted)


# ---- shapes that are settled when a program is called -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disable", [(), ("codegen",)], ids=["codegen", "aten"])
def test_a_computed_size_of_one_broadcasts(disable: tuple[str, ...]) -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        n, m = fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Int)
        z = fd.ops.add(fd.ops.reshape(x, [n, m]), y)
        fd.add_output(z)
        fd.add_output(fd.ops.sum(z, [0]))
    b = whole(3, 4)
    for a, n_, m_ in ((whole(2, 6), 3, 4), (whole(2, 2), 1, 4), (whole(3, 1), 3, 1), (whole(1, 1), 1, 1)):
        out, total = fd.execute([a, b, n_, m_], _disable_options=disable)
        assert torch.equal(out, a.reshape(n_, m_) + b) and torch.equal(total, out.sum(0))
    with pytest.raises(ShapesDoNotBroadcast):
        fd.execute([whole(2, 4), b, 2, 4], _disable_options=disable)


def test_an_input_dim_of_one_is_an_ordinary_size() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(x, y))
    assert fd.execute([torch.ones(1, 1), torch.ones(1, 1)])[0].shape == (1, 1)
    with pytest.raises(ShapesDoNotBroadcast):
        fd.execute([torch.ones(1, 4), torch.ones(3, 4)])


def test_arithmetic_on_scalars_steers_shapes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        f = fd.define_scalar(DataType.Double)
        width = fd.ops.cast(fd.ops.mul(f, fd.ops.size(x, 0)), DataType.Int)
        fd.add_output(fd.ops.pad(x, [width, fd.ops.cast(fd.ops.mul(2.5, 7), DataType.Int)]))
    value = torch.ones(3)
    for factor in (1.5, 0.0, 0.9):
        assert torch.equal(fd.execute([value, factor])[0], F.pad(value, [int(3 * factor), 17]))


def test_an_integer_that_steers_nothing_makes_no_plan() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Int)
        fd.add_output(fd.ops.add(x, fd.define_scalar(DataType.Int)))
    for n in range(5):
        assert fd.execute([torch.arange(3), n])[0].tolist() == [n, n + 1, n + 2]
    assert len(fd._calls.bound) == 1


def test_ranks_to_twelve() -> None:
    x = torch.arange(4096.0)
    with FusionDefinition() as fd:
        t = fd.ops.reshape(fd.define_tensor([-1]), [2] * 12)
        t = fd.ops.permute(t, list(range(11, -1, -1)))
        fd.add_output(fd.ops.sum(fd.ops.mul(t, 2.0), [0, 5]))
    wanted = (x.reshape([2] * 12).permute(*range(11, -1, -1)) * 2).sum((0, 5))
    assert torch.equal(fd.execute([x])[0], wanted)


@pytest.mark.parametrize("disable", [(), ("codegen",)], ids=["codegen", "aten"])
def test_empty_tensors(disable: tuple[str, ...]) -> None:
    x, y = torch.empty(0, 3), whole(2, 3)
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, 3]), fd.define_tensor([-1, -1])
        for t in (
            fd.ops.cat([a, b], 0), fd.ops.sum(a, [0]), fd.ops.reshape(a, [5, 0]), fd.ops.pad(a, [0, 0, 1, 1]),
            fd.ops.expand(fd.ops.sum(a, [0], keepdim=True), [0, 3]), fd.ops.add(a, a), fd.ops.slice(b, [1, 0], [1, 3]), fd.ops.cumsum(a, 0),
        ):  # fmt: skip
            fd.add_output(t)
    outs = fd.execute([x, y], _disable_options=disable)
    wanted = [torch.cat([x, y]), x.sum(0), x.reshape(5, 0), F.pad(x, [0, 0, 1, 1]), x, x, y[1:1], x]
    for have, want in zip(outs, wanted, strict=True):
        assert have.shape == want.shape and torch.equal(have, want)


@pytest.mark.parametrize("disable", [(), ("codegen",)], ids=["codegen", "aten"])
def test_expanded_and_misaligned_inputs(disable: tuple[str, ...]) -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1], contiguity=[None, True]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(x, y))
        fd.add_output(fd.ops.sum(x, [0]))
    row = torch.arange(18.0)[1:18]
    expanded, misaligned = row.expand(5, 17), torch.arange(86.0)[1:].view(5, 17)
    out, total = fd.execute([expanded, misaligned], _disable_options=disable)
    assert torch.equal(out, expanded + misaligned) and torch.equal(total, row * 5)


def test_zero_dim_inputs() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([]), fd.define_tensor([-1])
        fd.add_output(fd.ops.mul(x, y))
        fd.add_output(fd.ops.add(x, 1.0))
        fd.add_output(fd.ops.argsort(x, 0))
    out, more, order = fd.execute([torch.tensor(3.0), torch.ones(4)])
    assert out.tolist() == [3.0] * 4 and more.item() == 4 and order.item() == 0


# ---- layouts and boundaries ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[2, 1, 0], [0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1], [1, 0, 2]])
@pytest.mark.parametrize("first", [True, False])
def test_stride_order_sets_the_layout(order: list[int], first: bool) -> None:
    x = whole(2, 3, 4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1, -1])
        fd.add_output(fd.ops.stride_order(t if first else fd.ops.neg(t), order))
    (out,) = fd.execute([x])
    assert torch.equal(out, x if first else -x) and out.data_ptr() != x.data_ptr()
    strides, inside = [0, 0, 0], 1
    for d in sorted(range(3), key=lambda d: order[d]):
        strides[d], inside = inside, inside * x.shape[d]
    assert list(out.stride()) == strides


def test_segment_set_ends_a_kernel() -> None:
    x = whole(4, 5)
    with FusionDefinition() as fd:
        a = fd.ops.neg(fd.define_tensor([4, 5]))
        b = fd.ops.segment_set(a)
        fd.add_output(fd.ops.add(fd.ops.sum(b, [1], keepdim=True), a))
    assert torch.equal(fd.execute([x])[0], -x.sum(1, keepdim=True) - x)
    report = fd.explain([x])
    assert sum(s.kind == "kernel" for s in report.segments) == 2
    assert any("segment_set asks for" in r for r in report.refusals)


@pytest.mark.parametrize("disable", [(), ("codegen",)], ids=["codegen", "aten"])
def test_reductions_over_repeats_round_once(disable: tuple[str, ...]) -> None:
    x = torch.tensor([0.1, 0.7, -0.3])
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1])
        n = fd.define_scalar(DataType.Int)
        spread = fd.ops.broadcast_in_dim(t, [n, fd.ops.size(t, 0), 2], [1])
        for dims in ([0], [0, 2], [0, 1], [1], [0, 1, 2]):
            for op in (fd.ops.sum, fd.ops.prod, fd.ops.max, fd.ops.min):
                fd.add_output(op(spread, dims))
    outs = iter(fd.execute([x, 1000], _disable_options=disable))
    wide = x.double()[None, :, None].expand(1000, 3, 2)
    for dims in ((0,), (0, 2), (0, 1), (1,), (0, 1, 2)):
        product = wide.clone()
        for d in reversed(dims):
            product = product.prod(d)
        for wanted in (wide.sum(dims), product, wide.amax(dims), wide.amin(dims)):
            torch.testing.assert_close(next(outs).double(), wanted, rtol=2e-6, atol=1e-30)
    assert torch.equal(fd.execute([x, 1000], _disable_options=disable)[0], (x * 1000)[:, None].expand(3, 2))


# ---- mistakes -------------------------------------------------------------------------------------------------------------------------------------


def _deep(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.broadcast(x, [True, False, False])


MISTAKES: list[tuple[str, Callable[[Any, Any, Any], Any], type[Exception]]] = [
    ("gather: dim", lambda fd, x, i: fd.ops.gather(x, i, 2), DimOutOfRange),
    ("gather: float index", lambda fd, x, i: fd.ops.gather(x, x, 0), DtypeError),
    ("gather: longer index", lambda fd, x, i: fd.ops.gather(x, fd.ops.cat([i, i], 1), 0), ShapeError),
    ("index_select: rank", lambda fd, x, i: fd.ops.index_select(x, i, 0), ShapeError),
    ("select: outside", lambda fd, x, i: fd.ops.select(x, 9, 0), ShapeError),
    ("scatter: type", lambda fd, x, i: fd.ops.scatter(x, i, i, 0), DtypeError),
    ("embedding: weight", lambda fd, x, i: fd.ops.embedding_fwd(i, fd.ops.sum(x, [0])), ShapeError),
    ("topk: negative", lambda fd, x, i: fd.ops.topk(x, -1), ShapeError),
    ("topk: too many", lambda fd, x, i: fd.ops.topk(x, 6, 1), ShapeError),
    ("cumsum: float dim", lambda fd, x, i: fd.ops.cumsum(x, 0.5), ArgumentTypeError),
    ("cumsum: no dims", lambda fd, x, i: fd.ops.cumsum(fd.ops.sum(x), 0), DimOutOfRange),
    ("stride_order", lambda fd, x, i: fd.ops.stride_order(x, [0, 0]), ShapeError),
    ("reshape: two holes", lambda fd, x, i: fd.ops.reshape(x, [-1, -1]), ReshapeCountError),
    ("pad: type", lambda fd, x, i: fd.ops.pad(x, [1, 1], 1), DtypeError),
    ("squeeze", lambda fd, x, i: fd.ops.squeeze(x, [0]), ShapeError),
    ("iota: infinite", lambda fd, x, i: fd.ops.iota(3, float("inf"), 1.0, DataType.Float), ShapeError),
    ("sdpfa: rank", lambda fd, x, i: fd.ops.sdpfa_fwd(x, x, x), ShapeError),
    ("grouped_mm: three by three", lambda fd, x, i: fd.ops.grouped_mm(_deep(fd, x), _deep(fd, x), fd.ops.sum(i, [1])), ShapeError),
    ("narrow: block", lambda fd, x, i: fd.ops.nv_block_quantize(x), NotOnThisDevice),
    ("narrow: grouped", lambda fd, x, i: fd.ops.nv_grouped_block_quantize(x, i, i), NotOnThisDevice),
    ("narrow: relayout", lambda fd, x, i: fd.ops.preprocess_grouped_matmul_input_sf(x, i, i), NotOnThisDevice),
    ("narrow: grouped_mm", lambda fd, x, i: fd.ops.cutlass_nvfp4_grouped_mm(x, x, x, x, x, i, i, i), NotOnThisDevice),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "error"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistakes_have_names(name: str, call: Callable[[Any, Any, Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error), FusionDefinition() as fd:
        x, i = fd.define_tensor([6, 5]), fd.define_tensor([6, 5], dtype=DataType.Int)
        made = call(fd, x, i)
        fd.add_output(made[0] if isinstance(made, tuple) else made)
        fd._finish()
        fd.execute([whole(6, 5), index(6, 5, below=5)])


def test_mistakes_that_show_when_called() -> None:
    with FusionDefinition() as fd:
        x, k = fd.define_tensor([-1]), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.topk(x, k, 0, True, True)[0])
    assert fd.execute([torch.arange(4.0), 2])[0].tolist() == [3.0, 2.0]
    for bad in (5, -1):
        with pytest.raises(ShapeError):
            fd.execute([torch.arange(4.0), bad])
