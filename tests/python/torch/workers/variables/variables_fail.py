"""Variables that have failed stay so; all others go on, also when a server dies after that."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, raises, same

# Several partitions on each lane, more than the credit admits at once.
LARGE = nn.Linear(512, 512)
SMALL = nn.Linear(512, 3)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 512)).sum().backward()
    optimizer.step()


def distributed(model: nn.Module, name: str, lr: float) -> torch.optim.Optimizer:
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    named = [(f"{name}.{own}", parameter) for own, parameter in model.named_parameters()]
    return hvd.DistributedOptimizer(sgd, named, on_servers=True)


server = int(sys.argv[1])
hvd.init()
failing = distributed(LARGE, "large", 0.1 + RANK)
going_on = distributed(SMALL, "small", 0.1)
with raises(hvd.MismatchError, "large", "step is"):
    step(LARGE, failing)
failing.param_groups[0]["lr"] = 0.1
for _ in range(3):
    # Some of the lanes have seen the round from which others have only the error.
    with raises(hvd.MismatchError, "large", "step is"):
        step(LARGE, failing)
    step(SMALL, going_on)
if RANK == 0:
    os.kill(server, signal.SIGKILL)
for _ in range(5):
    step(SMALL, going_on)
for one in hvd.allgather(SMALL.weight.detach().unsqueeze(0)):
    same(one, SMALL.weight.detach())
# The same model with variables of its own.
failing = distributed(LARGE, "large", 0.1)
for _ in range(2):
    step(LARGE, failing)
hvd.shutdown()
