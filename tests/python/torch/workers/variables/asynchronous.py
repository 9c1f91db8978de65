"""Ranks that take steps of their own and add them to parameters that all share."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import nn

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same

KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
}
TURNS = 1000


def new_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 3))


def backward(model: nn.Module, turn: int) -> None:
    generator = torch.Generator().manual_seed(turn)
    x, y = torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()


def in_turn(kind: str, order: list[int]) -> list[torch.Tensor]:
    """What a plain asynchronous parameter server makes of steps in this order.

    Each worker has a model and an optimizer of its own. In its turn it takes a step from the
    parameters that it pulled last, pushes what has changed, and pulls.
    """
    optimizer, options = KINDS[kind]
    server = [parameter.detach().clone() for parameter in new_model().parameters()]
    models = [new_model() for _ in ALL]
    pulled = [[value.clone() for value in server] for _ in ALL]
    optimizers = [optimizer(model.parameters(), **options) for model in models]
    for turn, worker in enumerate(order):
        backward(models[worker], turn)
        optimizers[worker].step()
        own = models[worker].parameters()
        for value, before, parameter in zip(server, pulled[worker], own, strict=True):
            value += parameter.detach() - before
            before.copy_(value)
            parameter.data.copy_(value)
    return server


class Clock(nn.Module):
    """A parameter that counts each rank's steps: a step adds one to the rank's own element."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(WORLD_SIZE))

    def forward(self) -> torch.Tensor:
        return -self.steps[RANK]


def counting(staleness: int | None) -> tuple[Clock, torch.optim.Optimizer]:
    clock = Clock()
    sgd = torch.optim.SGD(clock.parameters(), lr=1.0)
    named = clock.named_parameters()
    return clock, hvd.DistributedOptimizer(sgd, named, op=hvd.Sum, staleness=staleness)


def step(clock: Clock, optimizer: torch.optim.Optimizer) -> list[int]:
    optimizer.zero_grad()
    clock().backward()
    optimizer.step()
    return [int(count) for count in clock.steps.tolist()]


hvd.init()

# BytePS, Theorem 2: what servers are sent in one order, they make the same of as a plain
# asynchronous parameter server, whatever the optimizer of the workers.
for kind, (optimizer_kind, options) in KINDS.items():
    order = random.Random(kind).choices(list(ALL), k=TURNS)
    model = new_model()
    if RANK != 0:
        nn.init.ones_(model[0].weight)
    optimizer = hvd.DistributedOptimizer(
        optimizer_kind(model.parameters(), **options),
        model.named_parameters(),
        op=hvd.Sum,
        staleness=None,
    )
    for turn, worker in enumerate(order):
        if worker == RANK:
            backward(model, turn)
            optimizer.step()
        hvd.barrier()
    optimizer.synchronize()
    for parameter, value in zip(model.parameters(), in_turn(kind, order), strict=True):
        same(parameter.detach(), value)

# Without a bound a rank does not wait for others, which have not begun.
clock, optimizer = counting(None)
if RANK == WORLD_SIZE - 1:
    for done in range(1, 21):
        assert step(clock, optimizer)[RANK] == done
hvd.barrier()
if RANK < WORLD_SIZE - 1:
    # All of the last rank's steps are there.
    assert step(clock, optimizer)[-1] == 20
optimizer.synchronize()
assert clock.steps.tolist() == [1.0] * (WORLD_SIZE - 1) + [20.0], clock.steps

# With one, no rank gets further ahead, and ranks that take fewer steps than others hold them up
# no longer once they have called synchronize().
for bound in (1, 3):
    clock, optimizer = counting(bound)
    own = 5 + 4 * RANK
    for done in range(1, own + 1):
        counts = step(clock, optimizer)
        assert counts[RANK] == done, counts
        assert all(count <= 5 + 4 * rank for rank, count in enumerate(counts)), counts
        slowest = min(counts[rank] for rank in ALL if done <= 5 + 4 * rank + bound)
        assert done > 5 or slowest >= done - bound, (counts, done, bound)
    optimizer.synchronize()
    assert clock.steps.tolist() == [5.0 + 4 * rank for rank in ALL], clock.steps
    # And again, from where they are.
    step(clock, optimizer)
    optimizer.synchronize()
    assert clock.steps.tolist() == [6.0 + 4 * rank for rank in ALL], clock.steps

# Averages are of the steps: together they are one of the synchronous kind.
models = []
for staleness in (0, 1):
    model = new_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), staleness=staleness)
    backward(model, RANK)
    optimizer.step()
    if staleness:
        optimizer.synchronize()
    models.append(model)
for one, other in zip(*(model.parameters() for model in models), strict=True):
    torch.testing.assert_close(one, other)

# Parameters in 16 bits are shared as float32: small steps add up.
weight = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
sgd = torch.optim.SGD([weight], lr=2.0**-8)
optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum, staleness=2)
for _ in range(4):
    weight.grad = torch.full_like(weight, -1.0)
    optimizer.step()
optimizer.synchronize()
assert weight[0].item() >= 1.0, weight[0]

# Its state is the worker's own; parameters that were loaded are shared by all again.
model = new_model()
adam = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), staleness=None)
backward(model, RANK)
optimizer.step()
optimizer.synchronize()
saved, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()
assert len(state["state"]) == 4, state
backward(model, RANK)
optimizer.step()
model.load_state_dict(saved)
with raises(ValueError, "0.weight was changed in the worker", "load_state_dict()"):
    optimizer.step()
optimizer.load_state_dict(state)
optimizer.synchronize()
for parameter, value in zip(model.parameters(), saved.values(), strict=True):
    same(parameter.detach(), value)

# What cannot be, is refused where it is asked for.
for given, error, words in [
    ({"staleness": -1}, ValueError, ["staleness=-1", "from 0"]),
    ({"staleness": 1, "on_servers": True}, ValueError, ["without on_servers"]),
    ({"staleness": 1, "overlap_forward": True}, ValueError, ["overlap_forward"]),
    ({"staleness": 1, "op": hvd.Adasum}, ValueError, ["op=Average or op=Sum"]),
    ({"staleness": 1, "compression": hvd.Compression.fp16}, ValueError, ["no compression"]),
]:
    with raises(error, *words):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **given
        )
if WORLD_SIZE > 1:
    other = new_model()
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    backward(other, RANK)
    with raises(hvd.MismatchError, "staleness 1", "staleness 2"):
        hvd.DistributedOptimizer(sgd, other.named_parameters(), staleness=1 + RANK % 2).step()
hvd.shutdown()
