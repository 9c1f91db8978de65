"""The gradient of each collective, against differences of the sum of all ranks' losses."""

from __future__ import annotations

from collections.abc import Callable

import torch

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE

STEP = 1e-5

Function = Callable[[torch.Tensor], torch.Tensor | list[torch.Tensor]]


def both(results: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([result.flatten() for result in results])


def halves(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[:WORLD_SIZE] * 2, tensor[WORLD_SIZE:] * 3]


def splits() -> list[int]:
    return [2 * WORLD_SIZE] + [0] * (WORLD_SIZE - 1)


# Horovod's gradients: where the exact one is summed over ranks it averages, and the other way
# round, so each is the exact one times this.
ONE, LESS, MORE = 1.0, 1.0 / WORLD_SIZE, float(WORLD_SIZE)

COLLECTIVES: dict[str, tuple[Function, float]] = {
    "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), ONE),
    "average": (lambda x: hvd.allreduce(x, name="average"), ONE),
    "scaled": (
        lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0),
        ONE,
    ),
    "grouped": (lambda x: both(hvd.grouped_allreduce(halves(x), name="group")), ONE),
    "push_pull": (lambda x: hvd.push_pull(x, name="average"), ONE),
    "push_pull sum": (lambda x: hvd.push_pull(x, average=False, name="sum"), ONE),
    "broadcast": (lambda x: hvd.broadcast(x, WORLD_SIZE - 1), LESS),
    "allgather": (lambda x: hvd.allgather(x[RANK:], name="uneven"), LESS),
    "grouped allgather": (lambda x: both(hvd.grouped_allgather(halves(x))), LESS),
    "alltoall": (lambda x: hvd.alltoall(x), ONE),
    "uneven alltoall": (lambda x: hvd.alltoall(x, splits(), name="uneven")[0], ONE),
    "reducescatter": (lambda x: hvd.reducescatter(x, name="average"), MORE),
    "reducescatter of a sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum), MORE),
    "grouped reducescatter": (lambda x: both(hvd.grouped_reducescatter(halves(x))), MORE),
}


def loss(function: Function, tensor: torch.Tensor) -> torch.Tensor:
    """Nothing that cancels: another weight for each rank and each element."""
    result = function(tensor)
    weights = torch.arange(1.0, result.numel() + 1, dtype=torch.float64).view(result.shape)
    return (result.sin() * weights * (RANK + 1)).sum()


def difference(function: Function, tensor: torch.Tensor, rank: int, index: int) -> float:
    """How the sum of all losses depends on one element of one rank."""
    ends = []
    for step in (STEP, -STEP):
        moved = tensor.clone()
        if rank == RANK:
            moved.view(-1)[index] += step
        ends.append(hvd.allreduce(loss(function, moved), op=hvd.Sum))
    return float((ends[0] - ends[1]) / (2 * STEP))


hvd.init()
generator = torch.Generator().manual_seed(RANK)
given = torch.randn(2 * WORLD_SIZE, 1, generator=generator, dtype=torch.float64)
for name, (function, factor) in COLLECTIVES.items():
    tensor = given.clone().requires_grad_()
    loss(function, tensor).backward()
    exact = [[difference(function, given, rank, i) for i in range(len(given))] for rank in ALL]
    expected = torch.tensor(exact[RANK], dtype=torch.float64).view(tensor.shape) * factor
    assert torch.allclose(tensor.grad, expected, rtol=1e-6, atol=1e-7), (
        name,
        tensor.grad,
        expected,
    )
hvd.shutdown()
