"""Trains with the optimizer on servers, which are killed on the way if their pids are given."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

import fake_device
import sumpter.torch as hvd
from common import RANK, leave_result
from fake_device import module_on_fake, on_fake
from sumpter._core import staging

STEPS = 12
# Between the first norm of the gradients and the last one.
NORM = 2.5

deferred, on_device = sys.argv[1] == "deferred", sys.argv[2] == "device"
if on_device:
    # Many slices, some of which are on their way when a server dies.
    staging.SLICE_BYTES = 32 << 10
    fake_device.install(pause_s=0.001)
hvd.init()
torch.manual_seed(1)
# Large enough to be cut, and for gradients to be on their way when a server dies.
model = nn.Sequential(nn.Linear(200, 1500), nn.ReLU(), nn.Linear(1500, 50))
model = module_on_fake(model) if on_device else model
adam = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(
    adam, model.named_parameters(), on_servers=True, deferred=deferred
)
pids = [int(pid) for pid in sys.argv[3:]]


def kill_a_server() -> None:
    if RANK == 0 and pids:
        os.kill(pids.pop(), signal.SIGKILL)


norms = []
for step in range(STEPS):
    generator = torch.Generator().manual_seed(100 * step + RANK)
    optimizer.zero_grad()
    data = torch.randn(8, 200, generator=generator)
    model(on_fake(data) if on_device else data).square().mean().backward()
    if step == 3 or (step == 7 and not deferred):
        kill_a_server()
    if deferred:
        norms.append(float(optimizer.clip_grad_norm_(NORM)))
        # Between the norm and what it decides.
        if step == 7:
            kill_a_server()
    optimizer.step()
if deferred:
    assert min(norms) < NORM < max(norms), norms
state = optimizer.state_dict()["state"]
parts = [parameter.detach().cpu() for parameter in model.parameters()]
parts += [state[index][slot] for index in sorted(state) for slot in ("exp_avg", "exp_avg_sq")]
leave_result(b"".join(part.contiguous().numpy().tobytes() for part in parts))
hvd.shutdown()
