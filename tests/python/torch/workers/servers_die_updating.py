"""Trains with the optimizer on servers, which are killed on the way if their pids are given."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, leave_result

STEPS = 12

hvd.init()
torch.manual_seed(1)
# Large enough to be cut, and for gradients to be on their way when a server dies.
model = nn.Sequential(nn.Linear(200, 1500), nn.ReLU(), nn.Linear(1500, 50))
adam = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), on_servers=True)
pids = [int(pid) for pid in sys.argv[1:]]
for step in range(STEPS):
    generator = torch.Generator().manual_seed(100 * step + RANK)
    optimizer.zero_grad()
    model(torch.randn(8, 200, generator=generator)).square().mean().backward()
    if RANK == 0 and step in (3, 7) and pids:
        os.kill(pids.pop(), signal.SIGKILL)
    optimizer.step()
state = optimizer.state_dict()["state"]
parts = [parameter.detach() for parameter in model.parameters()]
parts += [state[index][slot] for index in sorted(state) for slot in ("exp_avg", "exp_avg_sq")]
leave_result(b"".join(part.contiguous().numpy().tobytes() for part in parts))
hvd.shutdown()
