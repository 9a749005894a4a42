"""Bad input: each mistake has its class and says the facts; on other ranks it is `RankFailed`, in time, on cached calls too."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import CASES, F32, F64, Handles, by_methods, ints, line
from rank_pool import Died, run_on_ranks
from torch.distributed.tensor import Replicate, Shard

from interfuse import FusionDefinition, ParallelType, errors
from interfuse.multidevice import Communicator, DeviceMesh, shard_tensor

X, Y = ParallelType.mesh_x, ParallelType.mesh_y
TWO, GRID = line(2), DeviceMesh([[0, 1], [2, 3]], names=("dp", "tp"))


def defined(*shapes: list[int], op: Callable[..., Any] | None = None, place: Callable[..., Any] | None = None, dtype: Any = F32) -> FusionDefinition:
    """A program of one op (relu if not said), finished."""
    with FusionDefinition() as fd:
        ins = [fd.define_tensor(shape, dtype=dtype) for shape in shapes]
        out = op(fd, *ins) if op else fd.ops.relu(ins[0])
        fd.add_output(out)
        if place:
            place(*ins, out)
    return fd


def placed(do: Callable[[Any], Any], shape: list[int] | None = None) -> Callable[[], Any]:
    """A mistake in placing a tensor of shape [6, 8]."""

    def place(tv: Any, *_: Any) -> None:
        tv.set_device_mesh(TWO)
        do(tv)

    return lambda: defined(shape or [6, 8], place=place)


def parallel(tv: Any, loop: int, factor: int, kind: Any = X) -> None:
    tv.outer_split(loop, factor)
    tv.axis(loop).parallelize(kind)


def finished() -> FusionDefinition:
    return defined([4])


def other_definition() -> None:
    foreign = FusionDefinition().define_tensor([4])
    FusionDefinition().add_output(foreign)


def of_scalar() -> None:
    fd = FusionDefinition()
    fd.add_output(fd.define_scalar(3.0))  # type: ignore[arg-type]


def different_meshes(a: Any, b: Any, _: Any) -> None:
    a.set_device_mesh(TWO)
    b.set_device_mesh(line(3))


ADD: Callable[..., Any] = lambda fd, a, b: fd.ops.add(a, b)  # noqa: E731
F, I64 = torch.zeros, torch.zeros(3, 4, dtype=torch.int64)

LOCAL: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # ---- placements
    "shard of no dim": (placed(lambda t: t.set_placements(TWO, [Shard(2)])), errors.PlacementDimError, r"tv0.*Shard\(dim=2\).*2 dims"),
    "shard of no dim, negative": (placed(lambda t: t.set_placements(TWO, [Shard(-3)])), errors.PlacementDimError, r"tv0.*Shard\(dim=-3\).*2 dims"),
    "split of no loop": (placed(lambda t: t.outer_split(2, 2)), errors.PlacementDimError, r"loop 2 of 2.*6.*8"),
    "axis of no loop": (placed(lambda t: t.axis(-3).parallelize(X)), errors.PlacementDimError, r"loop -3 of 2.*6.*8"),
    "axis that the mesh lacks": (placed(lambda t: parallel(t, 0, 2, Y)), errors.PlacementDimError, r"mesh_y.*DeviceMesh\(\[0, 1\]\)"),
    "name that the mesh lacks": (placed(lambda t: parallel(t, 0, 2, "tp")), errors.PlacementDimError, r"no axis 'tp'.*axes are x"),
    "axis used twice": (placed(lambda t: (parallel(t, 0, 2), parallel(t, 2, 2))), errors.AxisUsedTwice, r"'x'.*twice"),
    "factor is not the size": (
        placed(lambda t: parallel(t, 1, 4)),
        errors.SplitFactorError,
        r"tv0: dim 1.*split by 4.*x has 2 ranks.*outer_split\(…, 2\)",
    ),
    "factor is no number": (placed(lambda t: t.outer_split(0, 0)), errors.SplitFactorError, r"factor 0.*positive"),
    "whole dim is not the size": (
        placed(lambda t: t.axis(0).parallelize(X)),
        errors.SplitFactorError,
        r"dim 0 of size 6.*2 ranks.*outer_split\(0, 2\)",
    ),
    "chunks are not the size": (
        placed(lambda t: (t.inner_split(1, 2), t.axis(1).parallelize(X))),
        errors.SplitFactorError,
        r"size 8.*chunks of 2.*2 chunks.*outer_split",
    ),
    "placements per mesh dim": (placed(lambda t: t.set_placements(GRID, [Shard(0)])), errors.PlacementError, r"1 placements.*2 dims"),
    "merged loop": (placed(lambda t: (t.merge(0), parallel(t, 0, 2))), errors.NoSuchPlacement, r"tv0.*(merged|no placement)"),
    "no mesh": (lambda: defined([4, 4], place=lambda t, _: parallel(t, 0, 2)), errors.PlacementError, r"tv0.*no mesh.*set_device_mesh"),
    "cyclic split": (lambda: placed(lambda t: (t.inner_split(0, 2), t.axis(1).parallelize(X)))().explain(), errors.UnsupportedPlacement, r"cyclic"),
    "dim split by two axes": (
        lambda: defined([8, 8], place=lambda t, _: t.set_placements(GRID, [Shard(0), Shard(0)])).explain(),
        errors.UnsupportedPlacement,
        r"dim 0.*several axes.*dp.*tp",
    ),
    "two meshes": (lambda: defined([4], [4], op=ADD, place=different_meshes).explain(), errors.UnsupportedPlacement, r"different meshes"),
    # ---- meshes
    "duplicate ranks": (lambda: DeviceMesh([[0, 1], [1, 2]]), errors.MeshError, r"rank 1 twice"),
    "negative ranks": (lambda: DeviceMesh([0, -1]), errors.MeshError, r"negative rank -1"),
    "ragged mesh": (lambda: DeviceMesh([[0, 1], [2]]), errors.MeshError, r"rectangular"),
    "names of a mesh": (lambda: DeviceMesh([[0, 1]], names=("dp", "dp")), errors.MeshError, r"2 different"),
    "ranks outside the world": (
        lambda: defined([4], place=lambda t, _: t.set_placements(DeviceMesh([0, 5]), [Replicate()])).execute([F(4)]),
        errors.MeshError,
        r"rank 5.*world has 1",
    ),
    "explain for a rank outside": (
        lambda: CASES["row linear 6, both, methods on 2"].make().explain(rank=7),
        errors.MeshError,
        r"rank 7.*DeviceMesh\(\[0, 1\]\)",
    ),
    # ---- shapes and types of programs
    "shapes do not broadcast": (lambda: defined([3, 4], [3, 5], op=ADD), errors.ShapesDoNotBroadcast, r"add.*\[3, 4\], \[3, 5\].*dim 1.*4 and 5"),
    "symbolic shapes do not broadcast": (
        lambda: defined([-1, 4], [-1, 4], op=ADD).simulate([F(3, 4), F(2, 4)]),
        errors.ShapesDoNotBroadcast,
        r"add.*3 and 2",
    ),
    "symbolic sizes never broadcast": (
        lambda: defined([-1], [-1], op=ADD).execute([F(3), F(1)]),
        errors.ShapesDoNotBroadcast,
        r"(?s)declare the dim as 1.*3 and 1",
    ),
    "reshape count": (
        lambda: defined([3, 4], op=lambda fd, t: fd.ops.reshape(t, [5, 2])),
        errors.ReshapeCountError,
        r"\[3, 4\] \(12 elements\) to \[5, 2\] \(10 elements\)",
    ),
    "symbolic reshape count": (
        lambda: defined([-1, 4], op=lambda fd, t: fd.ops.reshape(t, [-1, 8])).execute([F(3, 4)]),
        errors.ReshapeCountError,
        r"12.*8",
    ),
    "two open sizes": (lambda: defined([3, 4], op=lambda fd, t: fd.ops.reshape(t, [-1, -1])), errors.ReshapeCountError, r"only one size may be -1"),
    "contracted sizes": (
        lambda: defined([3, 4], [5, 3], op=lambda fd, a, b: fd.ops.matmul(a, b)),
        errors.ShapeError,
        r"matmul.*\[3, 4\].*\[5, 3\].*4 and 5",
    ),
    "dim of a sum": (lambda: defined([3, 4], op=lambda fd, t: fd.ops.sum(t, [2])), errors.DimOutOfRange, r"sum: dim 2.*2 dims.*-2 to 1"),
    "types of cat": (lambda: defined([3], op=lambda fd, t: fd.ops.cat([t, fd.ops.cast(t, F64)])), errors.DtypeError, r"cat: f32 and f64; cast"),
    "size that is no number": (lambda: defined([3.5]), errors.ArgumentTypeError, r"size is a 64-bit int.*3\.5"),  # type: ignore[list-item]
    # ---- definitions
    "output of another definition": (other_definition, errors.OutputDependsOnNothing, r"tv0 belongs to another definition"),
    "output that is a scalar": (of_scalar, errors.OutputDependsOnNothing, r"not a tensor.*none of its inputs"),
    "output that is a number": (lambda: FusionDefinition().add_output(3.0), errors.OutputDependsOnNothing, r"3\.0 is not a tensor"),  # type: ignore[arg-type]
    "no outputs": (lambda: FusionDefinition().execute([]), errors.UndefinedProgram, r"no outputs.*add_output"),
    "op when finished": (lambda: (fd := finished()).ops.relu(fd._views[0]), errors.DefinitionFinished, r"fd\.ops\.relu.*finished"),
    "input when finished": (lambda: finished().define_tensor([3]), errors.DefinitionFinished, r"define_tensor.*finished"),
    "output when finished": (lambda: (fd := finished()).add_output(fd._views[0]), errors.DefinitionFinished, r"add_output.*finished"),
    "placement when finished": (lambda: finished()._views[0].set_device_mesh(TWO), errors.DefinitionFinished, r"set_device_mesh.*finished"),
    "op of another definition": (lambda: FusionDefinition().ops.relu(finished()._views[0]), errors.DefinitionError, r"relu.*another definition"),
    # ---- calls
    "count": (lambda: defined([3, 4]).execute([]), errors.InputCountError, r"takes 1 inputs \(tv0\).*not 0"),
    "type": (lambda: defined([3, 4]).execute([I64]), errors.InputDtypeError, r"tv0.*f32.*torch\.float32.*torch\.int64"),
    "no tensor": (lambda: defined([3, 4]).execute([2.0]), errors.InputDtypeError, r"tv0.*tensor.*2\.0"),
    "number of dims": (lambda: defined([3, 4]).execute([F(3)]), errors.InputRankError, r"tv0 is f32\[3, 4\].*2 dims.*\(3,\)"),
    "device": (lambda: defined([3, 4]).execute([F(3, 4, device="meta")]), errors.InputDeviceError, r"tv0.*meta.*CPU"),
    "shape": (lambda: defined([3, 4]).execute([F(3, 5)]), errors.InputShapeError, r"tv0.*f32\[3, 4\].*\(3, 5\)"),
    "global shape": (
        lambda: CASES["row linear 6, both, methods on 2"].make().simulate([F(3, 6).bfloat16(), F(4, 5).bfloat16()]),
        errors.InputShapeError,
        r"tv1.*bf16\[4, 6@x\].*\(4, 5\)",
    ),
    "option": (lambda: defined([3]).execute([F(3)], _disable_options=["codgen"]), errors.OptionError, r"no 'codgen'.*'codegen'"),
    "form": (lambda: defined([3]).explain(stop="loca"), errors.OptionError, r"'loca'.*local"),
    "strict": (
        lambda: defined([4, 6], op=lambda fd, t: fd.ops.slice(t, [1, 0], [3, 6]), place=lambda t, _: t.set_placements(TWO, [Shard(0)])).explain(
            [F(4, 6)], strict=True
        ),
        errors.UnaskedReplication,
        r"tv0 \(.*test_errors\.py:\d+\).*48 bytes",
    ),
}


@pytest.mark.parametrize("name", LOCAL)
def test_a_mistake_has_its_class_and_says_the_facts(name: str) -> None:
    do, error, pattern = LOCAL[name]
    with pytest.raises(error) as caught:
        do()
    assert type(caught.value) is error and isinstance(caught.value, errors.InterfuseError)
    assert re.search(pattern, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("DimOutOfRange", IndexError), ("PlacementDimError", IndexError), ("MeshError", ValueError), ("SplitFactorError", ValueError),
        ("InputDtypeError", TypeError), ("ArgumentTypeError", TypeError), ("UndefinedProgram", NotImplementedError),
        ("UnsupportedPlacement", NotImplementedError),
        ("RankFailed", RuntimeError),
        ("ShapesDoNotBroadcast", RuntimeError), ("InputShapeError", RuntimeError), ("OptionError", ValueError),
    ],
)  # fmt: skip
def test_classes_are_what_others_would_catch(ours: str, theirs: type[Exception]) -> None:
    assert issubclass(getattr(errors, ours), theirs) and issubclass(getattr(errors, ours), errors.InterfuseError)


def test_the_program_that_was_left_by_an_error_cannot_be_used() -> None:
    with pytest.raises(ZeroDivisionError), FusionDefinition() as fd:
        fd.define_tensor([3])
        raise ZeroDivisionError
    with pytest.raises(errors.DefinitionFinished):
        fd.define_tensor([3])


# ---- several ranks ------------------------------------------------------------------------------------------------------------------------------

ranks = pytest.mark.xdist_group("ranks")
TIMEOUT_S = 10.0


def in_time(timeout_s: float = TIMEOUT_S) -> None:
    from interfuse.settings import settings

    os.environ["INTERFUSE_TIMEOUT"] = f"{timeout_s:g}"
    settings.cache_clear()


def fate(fn: Callable[[], Any]) -> tuple[str, str, dict[str, Any], float]:
    """What `fn` raises: class, message, facts, seconds."""
    start_s = time.monotonic()
    try:
        fn()
    except errors.InterfuseError as error:
        return type(error).__name__, str(error), dict(vars(error)), time.monotonic() - start_s
    return "", "", {}, time.monotonic() - start_s


def three_rows() -> tuple[FusionDefinition, Handles]:
    """[-1, 6] split along dim 1 times [4, 6], over three ranks: one all-reduce."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, 6]), fd.define_tensor([4, 6])
        y = fd.ops.linear(x, w, None)
        fd.add_output(y)
        by_methods(x, line(3), {1: "x"})
        by_methods(w, line(3), {1: "x"})
        by_methods(y, line(3), {"r": "x"})
    return fd, (x, w)


BAD: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], list[Any]], str, str]] = {
    "shape": (lambda x, w: [x[:, :1], w], "InputShapeError", r"tv0 is f32\[5, 6@x\].*\(5, 2\) at x=1.*\(5, 1\)"),
    "global tensor": (lambda x, w: [x.repeat(1, 3), w], "InputShapeError", r"\(5, 2\) at x=1.*\(5, 6\).*shard_tensor"),
    "dtype": (lambda x, w: [x.double(), w], "InputDtypeError", r"tv0.*f32.*torch\.float64"),
    "dims": (lambda x, w: [x, w[0]], "InputRankError", r"tv1.*2 dims.*\(2,\)"),
    "count": (lambda x, w: [x], "InputCountError", r"takes 2 inputs \(tv0, tv1\).*not 1"),
    "device": (lambda x, w: [x, w.to("meta")], "InputDeviceError", r"tv1.*meta"),
    "rows": (lambda x, w: [x[:3], w], "InputShapeError", r"tv0: dim 0.*(5 on rank 0, 3 on rank 1, 5 on rank 2|differ)"),
}


def rank_gives(kind: str, cached: bool) -> tuple[str, str, dict[str, Any], float, bool]:
    """Rank 1's input is bad; afterwards all is well."""
    in_time()
    fd, (x, w) = three_rows()
    wx, ww = ints((5, 6), 1), ints((4, 6), 2)
    good = [shard_tensor(wx, x), shard_tensor(ww, w)]
    if cached:
        fd.execute(good)
        fd.execute(good)
    bad = BAD[kind][0](*good) if Communicator.instance().rank() == 1 else good
    result = fate(lambda: fd.execute(bad))
    return *result, all(torch.equal(fd.execute(good)[0], wx @ ww.t()) for _ in range(2))


@ranks
@pytest.mark.parametrize("cached", [False, True], ids=["first", "cached"])
@pytest.mark.parametrize("kind", BAD)
def test_bad_input_on_one_rank_is_named_on_all(kind: str, cached: bool) -> None:
    _, error, pattern = BAD[kind]
    results = run_on_ranks(3, rank_gives, kind, cached)
    assert results[1][0] == error and re.search(pattern, results[1][1]), results[1]
    for name, message, _, seconds, well in results:
        assert seconds < TIMEOUT_S and well, (name, message, seconds, well)
    for name, message, facts, *_ in (results[0], results[2]):
        if kind == "rows" and not cached and error in (name, facts.get("original", "").partition(":")[0]):
            continue  # A size that ranks disagree about is everybody's mistake: each finds it, or hears it from the first that did.
        assert name == "RankFailed" and facts["rank"] == 1 and error in facts["original"], (name, message)
        assert "rank 1" in message and error in message and facts["collective"] and facts["tensor"], message
        if cached:
            assert facts["collective"] == "all_reduce" and re.fullmatch(r"t\w+", facts["tensor"]), facts


def rank_has_uneven_rows(cached: bool) -> tuple[str, str, dict[str, Any], float]:
    in_time()
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 2])
        fd.add_output(fd.ops.sum(x, [0]))
        by_methods(x, line(3), {0: "x"})
    if cached:
        fd.execute([torch.ones(3, 2)])
        fd.execute([torch.ones(3, 2)])
    return fate(lambda: fd.execute([torch.ones(1 if Communicator.instance().rank() == 2 else 3, 2)]))


@ranks
@pytest.mark.parametrize("cached", [False, True], ids=["first", "cached"])
def test_uneven_local_sizes_that_nobody_explained(cached: bool) -> None:
    results = run_on_ranks(3, rank_has_uneven_rows, cached)
    assert all(seconds < TIMEOUT_S for *_, seconds in results)
    named = [r for r in results if r[0] == "UnevenSizeUnknown"]
    assert results[2] in named and (cached or len(named) == 3), results
    for _, message, *_ in named:
        assert re.search(r"tv0: dim 0.*3 on rank 0, 3 on rank 1, 1 on rank 2.*global_sizes", message), message
    for name, _, facts, _ in results:
        assert name == "UnevenSizeUnknown" or (name == "RankFailed" and facts["rank"] == 2 and "UnevenSizeUnknown" in facts["original"]), results


def rank_dies(when: str) -> tuple[str, str, dict[str, Any], float]:
    in_time(4.0 if when == "first" else TIMEOUT_S)
    fd, (x, w) = three_rows()
    good = [shard_tensor(ints((5, 6), 1), x), shard_tensor(ints((4, 6), 2), w)]
    if when == "cached":
        fd.execute(good)
        fd.execute(good)
    if Communicator.instance().rank() == 1:
        time.sleep(0.5)
        os._exit(3)
    return fate(lambda: fd.execute(good))


@ranks
@pytest.mark.parametrize("when", ["first", "cached"])
def test_a_rank_that_dies_in_mid_run(when: str) -> None:
    results = run_on_ranks(3, rank_dies, when, fresh=True)
    assert results[1] == Died(3)
    for name, message, facts, seconds in (results[0], results[2]):
        assert name == "RankFailed" and facts["rank"] == 1 and seconds < TIMEOUT_S, (name, message, facts, seconds)
        assert "rank 1" in message and facts["collective"] and facts["tensor"], facts
        if when == "cached":  # before its first call nobody knows a process: there it only does not answer
            assert seconds < 5 and facts["original"] and facts["collective"] == "all_reduce", (facts, seconds)


def rank_goes_elsewhere(cached: bool) -> tuple[str, str, dict[str, Any], float]:
    """Rank 1 runs another program of the same collectives and shapes."""
    in_time()
    made = []
    for op in ("sum", "max"):
        with FusionDefinition() as fd:
            x = fd.define_tensor([6, 4])
            fd.add_output(getattr(fd.ops, op)(x, [0]))
            by_methods(x, line(3), {0: "x"})
        made.append(fd)
    for fd in made if cached else ():
        fd.execute([torch.ones(2, 4)])
    return fate(lambda: made[Communicator.instance().rank() == 1].execute([torch.ones(2, 4)]))


@ranks
@pytest.mark.parametrize("cached", [False, True], ids=["first", "cached"])
def test_ranks_that_run_different_programs(cached: bool) -> None:
    results = run_on_ranks(3, rank_goes_elsewhere, cached, fresh=True)
    assert [name for name, *_ in results] == ["PlansDiffer"] * 3, results
    assert all(seconds < TIMEOUT_S and "differ" in message for _, message, _, seconds in results)


def rank_is_outside_the_world() -> tuple[str, str, dict[str, Any], float]:
    in_time()
    fd = defined([4], place=lambda t, _: t.set_placements(DeviceMesh([0, 1, 5]), [Shard(0)]))
    return fate(lambda: fd.execute([torch.ones(2)]))


@ranks
def test_a_mesh_that_is_larger_than_the_world() -> None:
    for name, message, _, seconds in run_on_ranks(3, rank_is_outside_the_world):
        assert name == "MeshError" and re.search(r"rank 5.*3 ranks \(0 to 2\)", message) and seconds < 1, message
