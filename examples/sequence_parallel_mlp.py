"""An MLP with sequence parallelism, in the class style: one all-gather, and a reduce-scatter that nobody asked for by name.

The residual `x` lies split over tokens; the down projection's partial sums are scattered because the sum with `x` wants them there.

    python examples/sequence_parallel_mlp.py                         # all ranks in this process
    torchrun --nproc-per-node 2 examples/sequence_parallel_mlp.py    # a process per rank
"""

import torch

from interfuse import DataType, FusionDefinition, ParallelType
from interfuse.multidevice import Communicator, DeviceMesh, shard_tensor

TOKENS, HIDDEN, FFN = 96, 64, 256


class Mlp(FusionDefinition):
    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks

    def definition(self) -> None:
        self.x = self.define_tensor([TOKENS, HIDDEN], dtype=DataType.Float)
        self.up = self.define_tensor([FFN, HIDDEN], dtype=DataType.Float)
        self.down = self.define_tensor([HIDDEN, FFN], dtype=DataType.Float)
        hidden = self.ops.relu(self.ops.linear(self.x, self.up))
        self.add_output(self.ops.add(self.x, self.ops.linear(hidden, self.down)))

    def multidevice_schedule(self) -> None:
        mesh = DeviceMesh(range(self.ranks))
        for t, dim in ((self.x, 0), (self.up, 0), (self.down, 1)):
            self.sched._set_device_mesh(t, mesh)
            self.sched.split(t, dim, self.ranks, False)
            self.sched.parallelize(t, dim, ParallelType.mesh_x)
            self.sched.set_allocation_as_loop(t)


def main() -> None:
    communicator = Communicator.instance()
    here, ranks = communicator.rank(), communicator.size() if communicator.size() > 1 else 2
    fd = Mlp(ranks)

    # Small integers: every sum is exact, so results are equal to the last bit, whoever adds in which order.
    torch.manual_seed(0)
    x, up, down = (torch.randint(-2, 3, shape).float() for shape in ((TOKENS, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)))
    expected = x + torch.relu(x @ up.T) @ down.T

    report = fd.explain()
    assert [c.kind for c in report.collectives] == ["all_gather", "reduce_scatter"]
    if communicator.size() > 1:
        (rows,) = fd.execute([shard_tensor(value, handle) for value, handle in ((x, fd.x), (up, fd.up), (down, fd.down))])
        assert torch.equal(rows, expected.chunk(ranks)[here])
    else:
        (whole,) = fd.simulate([x, up, down])
        assert torch.equal(whole, expected)
    if here == 0:
        print(report)
        print(f"equal to the last bit on {ranks} ranks")


if __name__ == "__main__":
    main()
