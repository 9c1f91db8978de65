"""Leaving a job and joining one of another size in the same process, in BytePS' words."""

from __future__ import annotations

import torch

import sumpter.torch as bps
from common import RANK, WORLD_SIZE, raises, same

# The rank that stays away; those after it move up.
LEAVES = 1


def check_job(rank: int, size: int) -> None:
    assert (bps.rank(), bps.size()) == (rank, size)
    total = torch.tensor([size * (size - 1) / 2.0])
    same(bps.push_pull(torch.tensor([float(rank)]), average=False, name="ranks"), total)
    same(bps.allreduce(torch.ones(size), op=bps.Sum), torch.full((size,), float(size)))


with raises(ValueError, "init()"):
    bps.suspend()
with raises(ValueError, "suspend()"):
    bps.resume(WORLD_SIZE, 0, RANK)
with raises(bps.UnsupportedError, "communicators"):
    bps.init(comm=object())
with raises(bps.UnsupportedError, "every rank takes part"):
    bps.init(comm=[0, WORLD_SIZE])
assert not bps.is_initialized()
bps.init(comm=range(WORLD_SIZE))
bps.init(True)
check_job(RANK, WORLD_SIZE)
model = torch.nn.Linear(2, 1)
bps.broadcast_parameters(model.state_dict())
bps.suspend()
for query in (bps.rank, bps.size, bps.local_rank, bps.local_size, bps.cross_rank, bps.cross_size):
    with raises(ValueError, "init()"):
        query()
assert not bps.is_initialized()
if RANK != LEAVES:
    rank = RANK - (RANK > LEAVES)
    bps.resume(WORLD_SIZE - 1, 0, rank)
    check_job(rank, WORLD_SIZE - 1)
    bps.broadcast_parameters(model.state_dict())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    model(torch.full((1, 2), float(rank))).sum().backward()
    optimizer.step()
    for other in bps.allgather(model.weight.detach().unsqueeze(0)):
        same(other, model.weight.detach())
    bps.shutdown()
