"""Jobs that fail, or that a rank leaves: all call init() again, without shutdown(), and go on."""

from __future__ import annotations

import torch

import sumpter
import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE
from sumpter._core import membership

LAST = WORLD_SIZE - 1


def check_training(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """One step by the mean of gradients that are known."""
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    (model(torch.ones(1, 3)) * (RANK + 1)).sum().backward()
    optimizer.step()
    mean = sum(rank + 1.0 for rank in ALL) / WORLD_SIZE
    torch.testing.assert_close(model.weight.detach(), before - mean)


def needs_all() -> None:
    hvd.allreduce(torch.ones(3), name="needs all")


def fail(call) -> None:
    try:
        call()
    except hvd.SumpterError as error:
        print("as expected:", error, flush=True)
    else:
        raise AssertionError("a rank was not missed")


def check_the_leaver_is_missed(leaver: int) -> None:
    """The others notice when an operation needs it."""
    if RANK == leaver:
        hvd.shutdown()
        hvd.shutdown()
    else:
        fail(needs_all)
        fail(needs_all)
    hvd.init()


def check_nothing_is_done_meanwhile(leaver: int) -> None:
    """The others only call init(), once the leaver has left."""
    session = membership.current()
    if RANK == leaver:
        hvd.shutdown()
    else:
        while not session.is_over():
            pass
    hvd.init()
    assert membership.current() is not session


def check_a_backward_pass_is_interrupted(leaver: int, model: torch.nn.Module) -> None:
    """What was in flight is forgotten, and passes are counted from the start."""
    if RANK == leaver:
        hvd.shutdown()
    else:
        model(torch.ones(1, 3)).sum().backward()
        fail(needs_all)
    hvd.init()


hvd.init()
session = membership.current()
hvd.init()
sumpter.init()
assert membership.current() is session, "a job that goes on was left"
model = torch.nn.Linear(3, 1, bias=False)
hvd.broadcast_parameters(model.state_dict())
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
)
check_training(optimizer, model)
for leaver in (0, LAST):
    check_the_leaver_is_missed(leaver)
    check_training(optimizer, model)
    check_nothing_is_done_meanwhile(leaver)
    check_training(optimizer, model)
    check_a_backward_pass_is_interrupted(leaver, model)
    check_training(optimizer, model)
# Shutting down a job that is over is no error.
if RANK != LAST:
    fail(needs_all)
hvd.shutdown()
print("fine")
