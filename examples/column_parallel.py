"""A column-parallel linear: the weight's rows are split, so each rank computes some columns of the result, and nobody talks.

python examples/column_parallel.py                               # all ranks in this process
torchrun --nproc-per-node 2 examples/column_parallel.py          # a process per rank
"""

import torch

from interfuse import DataType, FusionDefinition, ParallelType
from interfuse.multidevice import Communicator, DeviceMesh, shard_tensor


def main() -> None:
    communicator = Communicator.instance()
    here, ranks = communicator.rank(), communicator.size() if communicator.size() > 1 else 2

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 128], dtype=DataType.Float)
        weight = fd.define_tensor([256, 128], dtype=DataType.Float)
        bias = fd.define_tensor([256], dtype=DataType.Float)
        out = fd.ops.linear(x, weight, bias)
        fd.add_output(out)

        mesh = DeviceMesh(range(ranks))
        for t in (weight, bias):
            t.set_device_mesh(mesh)
            t.outer_split(0, ranks)
            t.axis(0).parallelize(ParallelType.mesh_x)

    # Small integers: every sum is exact, so results are equal to the last bit, whoever adds in which order.
    torch.manual_seed(0)
    inputs = [torch.randint(-4, 5, shape).float() for shape in ((64, 128), (256, 128), (256,))]
    expected = torch.nn.functional.linear(*inputs)

    report = fd.explain(inputs)
    assert report.collectives == []
    if communicator.size() > 1:
        (columns,) = fd.execute([shard_tensor(value, handle) for value, handle in zip(inputs, (x, weight, bias))])
        assert torch.equal(columns, expected.chunk(ranks, dim=1)[here])
    else:
        (whole,) = fd.simulate(inputs)
        assert torch.equal(whole, expected)
    if here == 0:
        print(report)
        print(f"equal to the last bit on {ranks} ranks")


if __name__ == "__main__":
    main()
