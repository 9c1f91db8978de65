"""Trains by DiLoCo with fragments in flight while servers are killed, if their pids are given."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, leave_result

STEPS = 24

hvd.init()
torch.manual_seed(1)
# Large enough to be cut, and for pseudo-gradients to be on their way when a server dies.
model = nn.Sequential(nn.Linear(200, 1500), nn.ReLU(), nn.Linear(1500, 50))
inner = torch.optim.AdamW(model.parameters(), lr=0.003)
outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
pids = [int(pid) for pid in sys.argv[1:]]
with hvd.DiLoCo(
    model, inner, outer, sync_every=4, fragments=2, fragment_sync_delay=3, fragment_update_alpha=0.5
) as diloco:
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + RANK)
        inner.zero_grad()
        model(torch.randn(8, 200, generator=generator)).square().mean().backward()
        inner.step()
        # Right after a fragment was sent, and while two are in flight.
        if RANK == 0 and step in (7, 14) and pids:
            os.kill(pids.pop(), signal.SIGKILL)
    state = diloco.state_dict()["outer"]["state"]
parts = list(diloco.global_parameters().values())
parts += [state[index]["momentum_buffer"] for index in sorted(state)]
parts += [parameter.detach() for parameter in model.parameters()] if RANK == 0 else []
leave_result(b"".join(part.contiguous().numpy().tobytes() for part in parts))
hvd.shutdown()
