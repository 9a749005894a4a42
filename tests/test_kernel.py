"""Tile programs: what one template can hold, what the loops look like, and that they mean what their nodes mean."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from kernel_programs import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I32,
    I64,
    Graph,
    assert_same,
    gelu_bias,
    interpreted,
    layernorm,
    make_inputs,
    random_segment,
    reference,
    rmsnorm,
    softmax,
    total,
    transposed,
)

from interfuse.ir import sizes
from interfuse.ir.nodes import Const, ScalarInput, SizeScalar
from interfuse.kernel.affine import divmod_of, flatten, reshape_groups, unflatten
from interfuse.kernel.nodes import Loop, walk
from interfuse.kernel.tile import refuse, template_of, tile
from interfuse.plan.segments import KernelSegment

A, B = sizes.symbol("a"), sizes.symbol("b")
BINDINGS = [{"a": 5, "b": 3}, {"a": 1, "b": 8}, {"a": 0, "b": 2}, {"a": 37, "b": 1}]


def check(segment: KernelSegment, *bindings: dict[str, int], scalars: dict[str, float] | None = None) -> None:
    for binding in bindings or ({},):
        inputs = make_inputs(segment, binding)
        wanted = reference(segment, inputs, binding, scalars or {})
        assert_same(interpreted(segment, inputs, binding, scalars or {}), wanted, f"{binding}\n{tile(segment)}")


# ---- addresses ------------------------------------------------------------------------------------------------------------------------------


def test_flat_index_splits_exactly() -> None:
    n0, n1, i, j = (sizes.symbol(s) for s in ("n0", "n1", "i", "j"))
    extents = {"i": n0, "j": n1}
    flat = flatten([i, j], [n0, n1])
    assert flat == sizes.add(sizes.mul(i, n1), j)
    assert divmod_of(flat, n1, extents) == (i, j)
    assert unflatten(flat, [n0, n1], extents) == [i, j]


def test_unprovable_split_joins_again() -> None:
    n0, n1, n2, i = (sizes.symbol(s) for s in ("n0", "n1", "n2", "i"))
    index = unflatten(i, [n0, n1, n2], {"i": sizes.symbol("n3")})
    assert "//" in str(index[0]) and "%" in str(index[1])
    assert flatten(index, [n0, n1, n2]) == i


def test_reshape_groups() -> None:
    assert reshape_groups([6, 4], [2, 3, 4]) == [([0], [0, 1]), ([1], [2])]
    assert reshape_groups([A, 1, 12], [A, 3, 4]) == [([0], [0]), ([2], [1, 2])]
    assert reshape_groups([sizes.mul(A, B)], [A, B]) == [([0], [0, 1])]


# ---- what fits and what does not --------------------------------------------------------------------------------------------------------------


def test_templates() -> None:
    cases = {
        "pointwise": gelu_bias(4, 8),
        "transpose": transposed(4, 8),
        "reduction": total(4, 8, 1),
        "normalization": softmax(4, 8),
    }
    for name, segment in cases.items():
        assert template_of(segment.nodes, segment.outputs) == tile(segment).template == name


def test_refuses_different_reduced_dims() -> None:
    g = Graph()
    x = g.input(4, 8)
    rows, columns = g.reduce("sum", x, 1), g.reduce("sum", x, 0)
    reason = refuse(g.nodes, [rows, columns])
    assert reason is not None and "t1" in reason and reason.count(".") <= 1


def test_refuses_slice_after_reduction() -> None:
    g = Graph()
    s = g.reduce("sum", g.input(6, 8), 1)
    assert "sliced" in (refuse(g.nodes, [g.slice(s, [1], [4])]) or "")


def test_refuses_row_of_another_length() -> None:
    g = Graph()
    s = g.reduce("sum", g.input(6, 8), 1)
    assert "reduces 8" in (refuse(g.nodes, [g.broadcast(s, (6, 5), (0,))]) or "")


def test_refuses_outputs_of_other_extents() -> None:
    g = Graph()
    x, y = g.input(6, 8), g.input(6)
    assert "other dims" in (refuse(g.nodes, [g.op("neg", x), g.op("neg", y)]) or "")


def test_refuse_is_near_linear() -> None:
    def seconds(count: int) -> float:
        g = Graph()
        t = g.input(A, 64)
        for _ in range(count):
            t = g.op("add", t, 1.0)
        start = time.process_time()  # not the clock: other tests run beside this one
        assert refuse(g.nodes, [t]) is None
        return time.process_time() - start

    small, large = min(seconds(200) for _ in range(5)), min(seconds(2000) for _ in range(5))
    assert large < 30 * small and large < 0.5


# ---- loops ----------------------------------------------------------------------------------------------------------------------------------


def test_contiguous_pointwise_is_one_flat_loop() -> None:
    g = Graph()
    x, y = g.input(4, A, 8), g.input(4, A, 8)
    kernel = tile(g.segment(g.op("add", x, y)))
    lanes = [s for s in walk(kernel.body) if isinstance(s, Loop) and s.kind == "lanes"]
    assert len(lanes) == 1 and sizes.symbols(lanes[0].hi) >= {"n0", "n1", "n2"}


def test_text_depends_on_neither_names_nor_numbers() -> None:
    assert str(tile(softmax(48, 64))) == str(tile(softmax(100, 37))) == str(tile(softmax(A, B)))
    assert tile(softmax(48, 64)).size_args == (48, 64)


def test_lanes_of_short_rows_run_over_rows() -> None:
    lanes = [s for s in walk(tile(total(100, 7, 1)).body) if isinstance(s, Loop) and s.kind == "lanes"]
    assert {s.var for s in lanes} == {"i0"}
    check(total(100, 7, 1))


def test_costly_values_are_kept_for_the_next_pass() -> None:
    text = str(tile(softmax(A, 64)))
    assert text.count("exp(") == 2 and "f32[n1] per thread" in text  # full tiles and the rest of one pass; the last pass reads the row


def test_reshape_of_outputs_costs_nothing() -> None:
    g = Graph()
    x, w = g.input(5, 12), g.input(4)
    y = g.op("mul", g.reshape(x, 5, 3, 4), g.broadcast(w, (5, 3, 4), (2,)))
    assert "//" not in str(tile(g.segment(g.reshape(y, 5, 12)))).split("lanes")[1]


def test_printed_form() -> None:
    assert str(tile(transposed(48, 64))) == (
        "kernel transpose(in0: f32, out0: f32, n0, n1)\n"
        "  grid g in range(((n0 + 31) // 32)*((n1 + 31) // 32)):\n"
        "    i0b = 32*(g // ((n1 + 31) // 32))\n"
        "    i1b = 32*(g % ((n1 + 31) // 32))\n"
        "    i0e = min(i0b + 32, n0)\n"
        "    i1e = min(i1b + 32, n1)\n"
        "    block1: f32[1056] per stack\n"
        "    serial i1 in range(i1b, i1e):\n"
        "      lanes i0 in range(i0b, i0e):\n"
        "        block1[33*i0 - 33*i0b + i1 - i1b] = load in0[i1*n0 + i0] as f32\n"
        "    serial i0 in range(i0b, i0e):\n"
        "      lanes i1 in range(i1b, i1e):\n"
        "        v2 = block1[33*i0 - 33*i0b + i1 - i1b]\n"
        "        v3 = mul(v2, 2.0)\n"
        "        v4 = add(v3, 1.0)\n"
        "        store out0[i0*n1 + i1] = v4"
    )


# ---- meaning --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1])
def test_softmax(dim: int) -> None:
    check(softmax(A, 37, dim), *BINDINGS[:2])


def test_normalizations() -> None:
    check(layernorm(A, 40), *BINDINGS)
    check(layernorm(40, 40, with_statistics=True))
    check(rmsnorm(A, 33), *BINDINGS[:2])


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_reductions(dims: tuple[int, ...]) -> None:
    for name in ("sum", "max", "min", "prod"):
        check(total(A, 37, *dims, name=name), *BINDINGS)


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_long_reductions_are_cut(dims: tuple[int, ...]) -> None:
    segment = total(A, B, *dims, dtype=I64)
    check(segment, {"a": 70 * (dims != (1,)) + 3, "b": 65536 // 70 if dims != (1,) else 30000})


def test_views() -> None:
    g = Graph()
    x = g.input(4, A, 6)
    p = g.pad(g.permute(x, 2, 0, 1), [1, 0, 0], [9, 4, A], 2.5)
    c = g.cat(0, p, g.permute(x, 2, 0, 1))
    check(g.segment(g.op("exp", g.slice(c, [2, 1, 0], [11, 2, A]))), *BINDINGS)


def test_reshapes() -> None:
    g = Graph()
    x = g.input(A, 24)
    y = g.op("add", g.reshape(x, A, 4, 6), g.reshape(g.input(4), 1, 4, 1))
    check(g.segment(g.op("neg", g.reshape(y, sizes.mul(A, 8), 3))), *BINDINGS)


def test_symmetric_sum_reads_at_two_indices() -> None:
    g = Graph()
    x = g.input(7, 7)
    check(g.segment(g.op("add", x, g.permute(x, 1, 0))))


def test_factories_and_scalars() -> None:
    g = Graph()
    alpha, flag = ScalarInput("alpha", F64), ScalarInput("flag", BOOL)
    i = g.iota(A, SizeScalar(B), Const(3, I64), I64)
    f = g.op("mul", g.op("cast", i, dtype=F32), alpha)
    y = g.op("add", f, g.full([A], SizeScalar(sizes.mul(A, 2)), F32))
    check(g.segment(g.op("where", g.op("lt", y, 100.0), y, alpha), g.full([A], flag, BOOL)), *BINDINGS, scalars={"alpha": 0.37, "flag": True})


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations([F32, F64, F16, BF16, I64, I32, BOOL], 2)))
def test_casts(source: object, target: object) -> None:
    g = Graph()
    check(g.segment(g.op("cast", g.input(3, 5, dtype=source), dtype=target)))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(100))
def test_random(seed: int) -> None:
    check(random_segment(seed), *BINDINGS)


def test_nan_reaches_the_result() -> None:
    segment = total(3, 50, 1, name="max")
    inputs = make_inputs(segment, {})
    inputs[0][1, 7] = float("nan")
    (result,) = interpreted(segment, inputs, {})
    assert torch.isnan(result).tolist() == [False, True, False]
