"""Ranks with less data than others: `join`, several times in one run."""

from __future__ import annotations

import torch

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same


def rows_of(rank: int) -> int:
    """How many batches a rank has: the higher ranks have more, the last one most."""
    return 3 * rank


def check_averages_divide_by_all_ranks() -> None:
    for batch in range(rows_of(RANK)):
        still = [rank for rank in ALL if rows_of(rank) > batch]
        total = float(sum(rank + batch for rank in still))
        mine = torch.full((1000,), float(RANK + batch))
        same(hvd.allreduce(mine, name="named", op=hvd.Sum), torch.full((1000,), total))
        expected = torch.full((1000,), total / WORLD_SIZE)
        torch.testing.assert_close(hvd.allreduce(mine), expected)
        # Names that only some ranks have ever used.
        count = hvd.allreduce(torch.tensor([1]), op=hvd.Sum, name=f"batch {batch}")
        same(count, torch.tensor([len(still)]))
        # A name with another shape each time, which only some ranks have seen.
        varied = torch.ones(1 + batch % 4)
        same(hvd.allreduce(varied, op=hvd.Sum, name="varied"), varied * len(still))
    assert hvd.join() == WORLD_SIZE - 1
    for size in (3, 1, 4):
        everyone = hvd.allreduce(torch.ones(size), op=hvd.Sum, name="varied")
        same(everyone, torch.full((size,), float(WORLD_SIZE)))


def check_other_collectives_meanwhile() -> None:
    if RANK > 0:
        # Rank 0 takes part with no rows.
        given = [torch.full((rank, 2), rank) for rank in ALL]
        same(hvd.allgather(given[RANK]), torch.cat(given[1:]))
        rows, counts = hvd.alltoall(torch.arange(WORLD_SIZE), [1] * WORLD_SIZE)
        same(rows, torch.full((WORLD_SIZE - 1,), RANK))
        same(counts, torch.tensor([0] + [1] * (WORLD_SIZE - 1), dtype=counts.dtype))
        same(hvd.broadcast(torch.tensor([RANK]), WORLD_SIZE - 1), torch.tensor([WORLD_SIZE - 1]))
        hvd.barrier()
        with raises(hvd.MismatchError, "rank 0 is its root, but is out of data"):
            hvd.broadcast(torch.tensor([RANK]), 0, name="from the idle")
    last = hvd.join()
    assert 0 <= last < WORLD_SIZE
    # The same on all ranks.
    same(hvd.allreduce(torch.tensor([last]), op=hvd.Max), torch.tensor([last]))
    same(hvd.allreduce(torch.tensor([last]), op=hvd.Min), torch.tensor([last]))


def check_an_optimizer_with_uneven_data() -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for batch in range(rows_of(RANK)):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(batch + RANK))).square().mean().backward()
        optimizer.step()
    last = hvd.join()
    assert last == WORLD_SIZE - 1
    # The one with the most data has the model; the others get it, as Horovod's users do.
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    weights = hvd.allgather(model.weight.detach().reshape(1, -1))
    same(weights, weights[:1].expand_as(weights).contiguous())


hvd.init()
for _ in range(3):
    check_averages_divide_by_all_ranks()
check_other_collectives_meanwhile()
# Unnamed operations are matched as before.
for value in range(20):
    same(hvd.allreduce(torch.full((7,), float(value))), torch.full((7,), float(value)))
check_an_optimizer_with_uneven_data()
hvd.barrier()
hvd.shutdown()
print("fine")
