"""Outputs that are written into inputs: who sees the old value, what is returned, and where it lies."""

from __future__ import annotations

import pytest
import torch

from interfuse import DataType, FusionDefinition, ParallelType
from interfuse.errors import DefinitionError, ShapeError
from interfuse.multidevice import DeviceMesh

CODEGEN = pytest.mark.parametrize("disable", [(), ("codegen",)], ids=["codegen", "aten"])


@CODEGEN
def test_an_aliased_output_is_hidden_and_readers_see_the_old_value(disable: tuple[str, ...]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, alias_input=x)
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.add(y, x))
    value = torch.ones(4, 3)
    double, both = fd.execute([value], _disable_options=disable)
    assert torch.equal(value, torch.full((4, 3), 2.0))
    assert torch.equal(double, torch.full((4, 3), 2.0)) and torch.equal(both, torch.full((4, 3), 3.0))


def test_an_output_that_is_also_written_is_that_memory_wherever_it_is_returned() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.ops.relu(x)
        fd.add_output(y)
        fd.add_output(y, x)
        fd.add_output(y)
        fd.add_output(x)
    value = torch.tensor([[-1.0, 2.0]])
    out = fd.execute([value])
    assert [o.data_ptr() for o in out] == [value.data_ptr()] * 3 and value.tolist() == [[0.0, 2.0]]


@pytest.mark.parametrize("layout", [lambda t: t.t().contiguous().t(), lambda t: torch.zeros(4, 6)[:, ::2].copy_(t)], ids=["transposed", "strided"])
def test_the_input_keeps_its_layout(layout) -> None:  # type: ignore[no-untyped-def]
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        fd.add_output(y)
    plain = torch.arange(12.0).view(4, 3)
    value = layout(plain)
    strides = value.stride()
    (out,) = fd.execute([value])
    assert value.stride() == strides and out.data_ptr() == value.data_ptr() and torch.equal(value, plain + 1)


@CODEGEN
def test_views_of_a_written_input_hold_the_old_value(disable: tuple[str, ...]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 3])
        fd.add_output(fd.ops.neg(x), x)
        fd.add_output(fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.reshape(fd.ops.slice(x, [0, 0], [2, 3]), [6]))
    plain = torch.arange(12.0).view(4, 3)
    value = plain.clone()
    flipped, part = fd.execute([value], _disable_options=disable)
    assert torch.equal(value, -plain) and torch.equal(flipped, plain.t()) and torch.equal(part, plain[:2].reshape(-1))


def test_two_inputs_swap() -> None:
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([3]), fd.define_tensor([3])
        fd.add_output(b, a)
        fd.add_output(a, b)
    left, right = torch.zeros(3), torch.ones(3)
    assert fd.execute([left, right]) == []
    assert left.tolist() == [1.0] * 3 and right.tolist() == [0.0] * 3


def test_a_broadcast_input_is_updated_from_a_sum_over_it() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([])
        spread = fd.ops.broadcast_in_dim(y, [fd.ops.size(x, 0)], [])
        fd.add_output(fd.ops.sum(spread, [0]), y)
        fd.add_output(fd.ops.mul(x, spread))
    x_value, y_value = torch.arange(5.0), torch.tensor(3.0)
    (out,) = fd.execute([x_value, y_value])
    assert y_value.item() == 15 and torch.equal(out, x_value * 3)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_shard_is_written_where_its_input_lies(ranks: int) -> None:
    mesh = DeviceMesh(list(range(ranks)))
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([7, 4]), fd.define_tensor([7, 4])
        x.set_device_mesh(mesh)
        x.outer_split(0, ranks)
        x.axis(0).parallelize(ParallelType.mesh_x)
        total = fd.ops.add(x, y)
        fd.add_output(total, y)  # y is replicated, what is written into it is split
        fd.add_output(fd.ops.mul(x, 2.0), x)
        fd.add_output(total)
    a, b = torch.arange(28.0).view(7, 4), torch.ones(7, 4)
    wanted = a + b
    first = a.clone()
    (out,) = fd.simulate([a, b])
    assert torch.equal(out, wanted) and torch.equal(b, wanted) and torch.equal(a, first * 2)


def test_plain_results_share_memory_with_inputs() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(x)
        fd.add_output(fd.ops.reshape(x, [-1]))
        fd.add_output(fd.ops.permute(x, [1, 0]))
    value = torch.arange(6.0).view(2, 3)
    assert [o.data_ptr() for o in fd.execute([value])] == [value.data_ptr()] * 3
    strided = torch.arange(12.0).view(3, 4)[:, ::2]
    whole, flat, flipped = fd.execute([strided])
    assert whole.data_ptr() == strided.data_ptr() and torch.equal(flat, strided.reshape(-1)) and torch.equal(flipped, strided.t())


def test_repr_rebuilds_aliases() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Double)
        fd.add_output(fd.ops.add(x, 1.0), x)
    namespace: dict[str, object] = {}
    exec(repr(fd), namespace)
    with FusionDefinition() as again:
        namespace["program"](again)  # type: ignore[operator]
    value = torch.zeros(3, dtype=torch.float64)
    assert again.execute([value]) == [] and value.tolist() == [1.0] * 3


def test_mistakes_have_names() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 3])
        y = fd.ops.add(x, 1.0)
        with pytest.raises(DefinitionError):
            fd.add_output(x, y)
        with pytest.raises(ShapeError):
            fd.add_output(fd.ops.reshape(x, [6]), x)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.cat([x, x]), x)
    with pytest.raises(ShapeError):
        fd.execute([torch.zeros(3)])
