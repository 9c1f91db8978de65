"""Adds steps to shared parameters while servers are killed, if their pids are given."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE

STEPS = 30
ELEMENTS = 300_000

hvd.init()
staleness = {"none": None}.get(sys.argv[1], 2)
pids = [int(pid) for pid in sys.argv[2:]]
# Each rank adds one to all of its own row: what is lost, or counts twice, shows.
weight = nn.Parameter(torch.zeros(WORLD_SIZE, ELEMENTS))
sgd = torch.optim.SGD([weight], lr=1.0)
optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum, staleness=staleness)
before = torch.zeros(WORLD_SIZE, ELEMENTS)
for step in range(STEPS):
    weight.grad = torch.zeros_like(weight)
    weight.grad[RANK] = -1.0
    if RANK == 0 and step in (8, 19) and pids:
        os.kill(pids.pop(), signal.SIGKILL)
    optimizer.step()
    now = weight.detach()
    assert bool((now[RANK] == step + 1).all()), "its own steps, each once"
    assert bool((now >= before).all()), "what a rank has seen is not lost"
    before.copy_(now)
optimizer.synchronize()
for rank in ALL:
    assert bool((weight.detach()[rank] == STEPS).all()), (rank, weight.detach()[rank].unique())
hvd.shutdown()
