"""One look at every part, in seconds: before every commit."""

from __future__ import annotations

import pytest
import torch
from programs import line, piece, row_linear, sequence_mlp

from interfuse import DataType, FusionDefinition, errors, reports
from interfuse.multidevice import DeviceMesh
from interfuse.shard.placement import Split, local_shape, place


def test_a_feed_forward_block_on_two_ranks() -> None:
    case = sequence_mlp(2)
    (out,) = case.make().simulate(case.inputs())
    assert torch.equal(out, case.wanted()[0])


def test_explain_says_what_happens() -> None:
    case = sequence_mlp(2)
    report = case.make().explain(case.inputs())
    assert [(c.kind, c.axis, c.team) for c in report.collectives] == [("all_gather", "x", (0, 1)), ("reduce_scatter", "x", (0, 1))]
    assert {"kernel", "library", "collective"} <= {s.kind for s in report.segments}
    text = str(report)
    assert all(word in text for word in ("placements", "all_gather", "reduce_scatter", "segments", "bytes"))
    assert "def bind(" in report.source("host") and report.peak_bytes
    assert any(r.plan is report.plan for r in reports())


@pytest.mark.parametrize("stop", ["traced", "placed", "local", "segmented", "scheduled", "tiled", "emitted"])
def test_every_form_prints(stop: str) -> None:
    case = sequence_mlp(2)
    assert str(case.make().explain(case.inputs(), stop=stop)).strip()


def test_repr_runs() -> None:
    fd, names = row_linear(2, bias=True).make(), {}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["program"](again)
    assert repr(again) == repr(fd)


def test_a_mistake_is_named() -> None:
    with pytest.raises(errors.ShapesDoNotBroadcast, match="add"), FusionDefinition() as fd:
        fd.ops.add(fd.define_tensor([3]), fd.define_tensor([4]))


def test_one_rank_needs_no_mesh() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 8], dtype=DataType.Float)
        fd.add_output(fd.ops.relu(fd.ops.sub(x, 1.0)))
    x_ = torch.arange(24.0).reshape(3, 8) - 12
    for disable in ((), ("codegen",)):
        assert torch.equal(fd.execute([x_], _disable_options=disable)[0], torch.relu(x_ - 1))


def test_placements_are_arithmetic() -> None:
    mesh = DeviceMesh([[2, 0, 1], [3, 5, 4]])
    placed = place(mesh, [[Split("x")], [], [Split("y")]])
    sizes = [tuple(int(n) if isinstance(n, int) else n for n in local_shape((7, 5, 1), placed))]
    assert len(sizes[0]) == 3 and sizes[0][1] == 5
    assert mesh.team(0, "x") == (2, 0, 1) and mesh.team(0, "y") == (0, 5)
    assert [piece(torch.arange(7), line(3), {0: "x"}, rank).tolist() for rank in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]
