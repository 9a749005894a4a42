"""Random numbers: one global tensor whatever the placement, ranges, and the contract between stateful and stateless calls."""

from __future__ import annotations

import pytest
import torch

from interfuse import DataType, FusionDefinition, ParallelType
from interfuse.errors import ArgumentTypeError, DtypeError
from interfuse.multidevice import DeviceMesh
from interfuse.ops.random import generate, philox

FLOATS = (DataType.Double, DataType.Float, DataType.Half, DataType.BFloat16)


@pytest.mark.parametrize(
    ("counter", "offset", "seed", "wanted"),
    [
        (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (-1, -1, -1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (0x85A308D3243F6A88, 0x0370734413198A2E, 0x299F31D0A4093822, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_philox_gives_the_published_vectors(counter: int, offset: int, seed: int, wanted: tuple[int, ...]) -> None:
    signed = counter - (1 << 64) if counter >= 1 << 63 else counter
    assert philox(torch.tensor([signed]), offset, seed)[0].tolist() == list(wanted)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_block_holds_what_the_whole_holds_there(kind: str, dtype: DataType) -> None:
    whole = generate(kind, dtype.torch, (5, 6, 7), 0.25, 2.0, 11, 3)
    for starts, shape in (((0, 0, 0), (5, 6, 7)), ((2, 0, 0), (3, 6, 7)), ((1, 2, 3), (3, 3, 3)), ((4, 1, 0), (1, 4, 7)), ((5, 0, 0), (0, 6, 7))):
        part = generate(kind, dtype.torch, shape, 0.25, 2.0, 11, 3, 0, (5, 6, 7), starts)
        where = tuple(slice(a, a + n) for a, n in zip(starts, shape, strict=True))
        assert torch.equal(part, whole[where])


def test_a_block_longer_than_a_chunk_is_the_same() -> None:
    whole = generate("uniform", torch.float32, (3, 70001), 0.0, 1.0, 5, 0)
    assert torch.equal(generate("uniform", torch.float32, (2, 70001), 0.0, 1.0, 5, 0, 0, (3, 70001), (1, 0)), whole[1:])
    assert torch.equal(generate("uniform", torch.float32, (3, 60000), 0.0, 1.0, 5, 0, 0, (3, 70001), (0, 9)), whole[:, 9:60009])


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_stays_below_its_upper_end_and_reaches_the_lower(dtype: DataType) -> None:
    for low, high in ((0.0, 1.0), (-3.0, 2.0), (1.0, 1.0078125)):
        x = generate("uniform", dtype.torch, (200_000,), low, high, 1, 0)
        assert x.min() >= low and x.max() < high
        if dtype.is_low_precision and low == 1.0:
            assert x.min() == low and x.max() == torch.nextafter(torch.tensor(high, dtype=dtype.torch), torch.tensor(low, dtype=dtype.torch))


def test_moments_are_right() -> None:
    u, n = (generate(kind, torch.float64, (100_000,), a, b, 7, 0) for kind, a, b in (("uniform", 2.0, 4.0), ("normal", 1.0, 3.0)))
    assert abs(u.mean() - 3) < 0.01 and abs(u.var() - 1 / 3) < 0.01
    assert abs(n.mean() - 1) < 0.05 and abs(n.std() - 3) < 0.05


def _stateful(kind: str, count: int = 1) -> FusionDefinition:
    with FusionDefinition() as fd:
        for _ in range(count):
            fd.add_output(getattr(fd.ops, kind)(0.3, 1.7, shape=[5, 9]))
    return fd


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_the_kth_call_after_a_seed_is_the_stateless_one(kind: str) -> None:
    with FusionDefinition() as fd:
        seed, offset = fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Int)
        fd.add_output(getattr(fd.ops, kind)(0.3, 1.7, shape=[5, 9], rng_seed=seed, rng_offset=offset))
    stateful = _stateful(kind)
    for given in (0, 12345, 2**63 - 1):
        torch.manual_seed(given)
        for k in range(400):  # beyond one refill of the generator's state
            made = stateful.execute([])[0]
            if k % 39 == 0:
                assert torch.equal(made, fd.execute([given, k])[0])
    assert len(fd._calls.bound) == 1  # a seed is given with a call; no plan is made for it


def test_a_saved_state_gives_the_same_again() -> None:
    fd = _stateful("uniform")
    torch.manual_seed(3)
    fd.execute([])
    state = torch.get_rng_state()
    first = fd.execute([])[0]
    torch.rand(1000)
    assert not torch.equal(fd.execute([])[0], first)
    torch.set_rng_state(state)
    assert torch.equal(fd.execute([])[0], first)


def test_a_generator_that_has_run_far_still_gives_new_numbers() -> None:
    fd = _stateful("uniform")
    torch.manual_seed(0)
    torch.rand(400_000)
    assert not torch.equal(fd.execute([])[0], fd.execute([])[0])


def test_two_ops_of_one_call_differ() -> None:
    a, b = _stateful("uniform", 2).execute([])
    assert not torch.equal(a, b)


def test_rand_like_follows_its_operand() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Half)
        fd.add_output(fd.ops.rand_like(x))
        fd.add_output(fd.ops.randn_like(x))
    uniform, normal = fd.execute([torch.zeros(40, 7, dtype=torch.half)])
    assert uniform.shape == normal.shape == (40, 7) and uniform.dtype == normal.dtype == torch.half
    assert 0 <= uniform.min() and uniform.max() < 1 and normal.min() < 0


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_every_placement_gives_the_same_mask(kind: str, dim: int | None, ranks: int) -> None:
    mesh = DeviceMesh(list(range(ranks)))
    with FusionDefinition() as fd:
        x = fd.define_tensor([7, 5])
        y = fd.ops.mul(x, getattr(fd.ops, kind)(0.0, 1.0, shape=[7, 5]))
        fd.add_output(y)
        for t in (x, y):
            t.set_device_mesh(mesh)
            if dim is not None:
                t.outer_split(dim, ranks)
                t.axis(dim).parallelize(ParallelType.mesh_x)
    torch.manual_seed(5)
    (out,) = fd.simulate([torch.ones(7, 5)])
    assert torch.equal(out, generate(kind, torch.float32, (7, 5), 0.0, 1.0, 5, 0))
    assert not fd.explain().collectives


def test_mistakes_have_names() -> None:
    with FusionDefinition() as fd:
        with pytest.raises(DtypeError):
            fd.ops.uniform(0.0, 1.0, shape=[2], dtype=DataType.Int)
        with pytest.raises(ArgumentTypeError):
            fd.ops.normal(0.0, 1.0, shape=[2], rng_seed=fd.define_scalar(DataType.Int))
        with pytest.raises(DtypeError):
            fd.ops.rand_like(fd.define_tensor([2], dtype=DataType.Int))
