"""The Horovod and BytePS interfaces between two ranks, in a few seconds; part of matrix.py.

Run it by hand with `sumpter run -n 2 -- python tests/matrix/smoke_front.py`.
"""

import torch

import sumpter.torch as hvd

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8)


def check_collectives(rank: int, size: int) -> None:
    """What every training script is made of, on values that no dtype rounds."""
    total = size * (size + 1) // 2
    for dtype in DTYPES:
        summed = hvd.allreduce(
            torch.full((1001,), rank + 1, dtype=dtype), op=hvd.Sum, name=f"sum.{dtype}"
        )
        assert torch.equal(summed, torch.full((1001,), total, dtype=dtype)), dtype
        again = hvd.push_pull(summed, average=False, name=f"again.{dtype}")
        assert torch.equal(again, summed * size), dtype
    uneven = hvd.allgather(torch.full((rank + 1, 2), float(rank)))
    assert [int(row[0]) for row in uneven] == [r for r in range(size) for _ in range(r + 1)]
    assert hvd.broadcast_object({"from": rank}, root_rank=1) == {"from": 1}
    splits = torch.ones(size, dtype=torch.int32)
    pieces, _ = hvd.alltoall(torch.arange(size) + 10 * rank, splits=splits)
    assert pieces.tolist() == [10 * r + rank for r in range(size)]
    leaf = torch.ones(3, requires_grad=True)
    hvd.allreduce(leaf * (rank + 1), op=hvd.Average).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), rank + 1.0))


def train(rank: int, size: int) -> list[float]:
    """Trains on this rank's part of the batch; the parameters that come out."""
    torch.manual_seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), hvd.SyncBatchNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    inputs = torch.randn(12, 8, generator=torch.Generator().manual_seed(7))[rank::size]
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def main() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert size > 1, "start this with `sumpter run -n 2`"
    check_collectives(rank, size)
    everyone = hvd.allgather_object(train(rank, size))
    assert all(parameters == everyone[0] for parameters in everyone), "ranks trained apart"
    hvd.shutdown()
    print("the fronts work")


if __name__ == "__main__":
    main()
