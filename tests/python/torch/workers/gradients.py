"""The gradient of each collective, against differences of the sum of all ranks' losses.

And the gradient of a function of it, which gradient penalties and Hessians need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises

STEP = 1e-5

Function = Callable[[torch.Tensor], torch.Tensor]


def both(results: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([result.flatten() for result in results])


def halves(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[:WORLD_SIZE] * 2, tensor[WORLD_SIZE:] * 3]


def splits() -> list[int]:
    return [2 * WORLD_SIZE] + [0] * (WORLD_SIZE - 1)


# Horovod's gradients: where the exact one is summed over ranks it averages, and the other way
# round, so each is the exact one times this. The same holds for what computes a gradient: that of a
# reducescatter is an allgather, so its second derivative is the exact one.
ONE, LESS, MORE = 1.0, 1.0 / WORLD_SIZE, float(WORLD_SIZE)

COLLECTIVES: dict[str, tuple[Function, float, float]] = {
    "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), ONE, ONE),
    "average": (lambda x: hvd.allreduce(x, name="average"), ONE, ONE),
    "scaled": (
        lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0),
        ONE,
        ONE,
    ),
    "grouped": (lambda x: both(hvd.grouped_allreduce(halves(x), name="group")), ONE, ONE),
    "push_pull": (lambda x: hvd.push_pull(x, name="average"), ONE, ONE),
    "push_pull sum": (lambda x: hvd.push_pull(x, average=False, name="sum"), ONE, ONE),
    "broadcast": (lambda x: hvd.broadcast(x, WORLD_SIZE - 1), LESS, LESS),
    "allgather": (lambda x: hvd.allgather(x[RANK:], name="uneven"), LESS, LESS),
    "grouped allgather": (lambda x: both(hvd.grouped_allgather(halves(x))), LESS, LESS),
    "alltoall": (lambda x: hvd.alltoall(x), ONE, ONE),
    "uneven alltoall": (lambda x: hvd.alltoall(x, splits(), name="uneven")[0], ONE, ONE),
    "reducescatter": (lambda x: hvd.reducescatter(x, name="average"), MORE, ONE),
    "reducescatter of a sum": (lambda x: hvd.reducescatter(x, op=hvd.Sum), MORE, ONE),
    "scaled reducescatter": (
        lambda x: hvd.reducescatter(x, prescale_factor=2.0, postscale_factor=3.0),
        MORE,
        ONE,
    ),
    "grouped reducescatter": (lambda x: both(hvd.grouped_reducescatter(halves(x))), MORE, ONE),
}


def loss(function: Function, tensor: torch.Tensor) -> torch.Tensor:
    """Nothing that cancels: another weight for each rank and each element."""
    result = function(tensor)
    weights = torch.arange(1.0, result.numel() + 1, dtype=torch.float64).view(result.shape)
    return (result.sin() * weights * (RANK + 1)).sum()


def penalty(function: Function, tensor: torch.Tensor) -> torch.Tensor:
    """Of the gradient of the loss, of which it is a function."""
    given = tensor if tensor.requires_grad else tensor.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(function, given), given, create_graph=True)
    weights = torch.arange(1.0, given.numel() + 1, dtype=torch.float64).view(given.shape)
    return (gradient.square() * weights * (RANK + 2)).sum()


def difference(measure: Function, tensor: torch.Tensor, rank: int, index: int) -> float:
    """How the sum of all ranks' measures depends on one element of one rank."""
    ends = []
    for step in (STEP, -STEP):
        moved = tensor.clone()
        if rank == RANK:
            moved.view(-1)[index] += step
        ends.append(hvd.allreduce(measure(moved).detach(), op=hvd.Sum))
    return float((ends[0] - ends[1]) / (2 * STEP))


def check_gradient(name: str, measure: Function, factor: float) -> None:
    tensor = given.clone().requires_grad_()
    measure(tensor).backward()
    exact = [[difference(measure, given, rank, i) for i in range(len(given))] for rank in ALL]
    expected = torch.tensor(exact[RANK], dtype=torch.float64).view(tensor.shape) * factor
    assert torch.allclose(tensor.grad, expected, rtol=1e-6, atol=1e-5), (
        name,
        tensor.grad,
        expected,
    )


def group_of(count: int, op: hvd.ReduceOp, tensor: torch.Tensor) -> torch.Tensor:
    return both(hvd.grouped_allreduce(halves(tensor)[:count], op=op))


def check_that_there_is_no_second_derivative(function: Function) -> None:
    """Of what is not linear: an error, and not a constant."""
    tensor = given.clone().requires_grad_()
    result = function(tensor).square().sum()
    (gradient,) = torch.autograd.grad(result, tensor, create_graph=True)
    with raises(RuntimeError, "differentiate twice"):
        gradient.sum().backward()
    assert tensor.grad is None


hvd.init()
generator = torch.Generator().manual_seed(RANK)
given = torch.randn(2 * WORLD_SIZE, 1, generator=generator, dtype=torch.float64)
for name, (function, factor, second) in COLLECTIVES.items():
    check_gradient(name, functools.partial(loss, function), factor)
    check_gradient(f"second of {name}", functools.partial(penalty, function), second)
for op in (hvd.Max, hvd.Product, hvd.Adasum):
    check_that_there_is_no_second_derivative(functools.partial(hvd.allreduce, op=op))
    for count in (1, 2):
        check_that_there_is_no_second_derivative(functools.partial(group_of, count, op))
for op in (hvd.Max, hvd.Product):
    result = hvd.reducescatter(given.clone().requires_grad_(), op=op)
    with raises(hvd.UnsupportedError, f"operator {op.value} has no gradient"):
        result.sum().backward()
hvd.shutdown()
