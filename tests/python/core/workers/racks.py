"""Every collective, and an optimizer on the servers, with integers that every order adds alike."""

from __future__ import annotations

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, same

SIZES = (1, 1000, 30_000, 100_003)


def values(size: int, rank: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32) % 97 + 1000 * rank


def total(size: int, ranks: list[int]) -> torch.Tensor:
    return torch.stack([values(size, rank) for rank in ranks]).sum(0)


def check_collectives(step: int, ranks: list[int], process_set: hvd.ProcessSet) -> None:
    given = {"process_set": process_set}
    name = f"of {len(ranks)}"
    for size in SIZES:
        same(
            hvd.allreduce(values(size, RANK), op=hvd.Sum, name=f"{name} {size}", **given),
            total(size, ranks),
        )
        root = ranks[step % len(ranks)]
        same(
            hvd.broadcast(values(size, RANK), root, name=f"{name} {size} {root}", **given),
            values(size, root),
        )
        same(
            hvd.allgather(values(size, RANK), name=f"{name} gathered {size}", **given),
            torch.cat([values(size, rank) for rank in ranks]),
        )
        rows = values(size * len(ranks), RANK)
        mine = hvd.reducescatter(rows, op=hvd.Sum, name=f"{name} scattered {size}", **given)
        at = ranks.index(RANK)
        same(mine, total(size * len(ranks), ranks)[at * size : (at + 1) * size])


def train(on_servers: bool) -> torch.Tensor:
    torch.manual_seed(3)
    model = nn.Linear(300, 200)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    named = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(sgd, named, op=hvd.Sum, on_servers=on_servers)
    for step in range(4):
        optimizer.zero_grad()
        # Gradients are multiples of a power of two, so that no order of addition shows.
        x = torch.full((1, 300), float(RANK + step) / 64)
        model(x).sum().backward()
        optimizer.step()
    return model.weight.detach()


hvd.init()
everyone = list(range(WORLD_SIZE))
some = [0, 2, 3, 5]
group = hvd.add_process_set(some)
for step in range(3):
    check_collectives(step, everyone, hvd.global_process_set)
    if RANK in some:
        check_collectives(step, some, group)
same(train(on_servers=True), train(on_servers=False))
hvd.shutdown()
