"""Moving a tensor from one placement to another: `set` changes nothing but where the tensor lies, and the planner finds the collective.

python examples/reshard.py                               # all ranks in this process
torchrun --nproc-per-node 2 examples/reshard.py          # a process per rank
"""

import torch

from interfuse import DataType, FusionDefinition, ParallelType, TensorView
from interfuse.multidevice import Communicator, DeviceMesh, shard_tensor

ROWS, COLUMNS = 10, 7  # uneven over 2, 3 or 4 ranks, which is no matter


def spread(t: TensorView, mesh: DeviceMesh, dim: int | None) -> None:
    t.set_device_mesh(mesh)
    if dim is not None:
        t.outer_split(dim, mesh.size)
        t.axis(dim).parallelize(ParallelType.mesh_x)


def move(ranks: int, start: int | None, end: int | None) -> tuple[FusionDefinition, TensorView]:
    """A program that moves a tensor from a split of dim `start` to a split of dim `end`; None: replicated."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([ROWS, COLUMNS], dtype=DataType.Float)
        y = fd.ops.set(x)
        fd.add_output(y)
        mesh = DeviceMesh(range(ranks))
        spread(x, mesh, start)
        spread(y, mesh, end)
    return fd, x


def piece(tensor: torch.Tensor, dim: int | None, ranks: int, rank: int) -> torch.Tensor:
    """A rank's shard, by torch.chunk's rule; the last ranks may get nothing."""
    if dim is None:
        return tensor
    length = -(-tensor.shape[dim] // ranks)
    start = min(rank * length, tensor.shape[dim])
    return tensor.narrow(dim, start, min(length, tensor.shape[dim] - start))


def main() -> None:
    communicator = Communicator.instance()
    here, ranks = communicator.rank(), communicator.size() if communicator.size() > 1 else 2
    whole = torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS)

    for start, end, expected in ((0, None, ["all_gather"]), (1, None, ["all_gather"]), (0, 1, ["all_to_all"]), (None, 0, [])):
        fd, x = move(ranks, start, end)
        collectives = fd.explain().collectives
        assert [c.kind for c in collectives] == expected
        if communicator.size() > 1:
            (local,) = fd.execute([shard_tensor(whole, x)])
            assert torch.equal(local, piece(whole, end, ranks, here))
        else:
            assert torch.equal(fd.simulate([whole])[0], whole)
        if here == 0:
            names = {None: "replicated", 0: "split by rows", 1: "split by columns"}
            cost = ", ".join(f"{c.kind}, {c.bytes} bytes" for c in collectives) or "no communication"
            print(f"{names[start]:>16} → {names[end]:<16} {cost}")


if __name__ == "__main__":
    main()
