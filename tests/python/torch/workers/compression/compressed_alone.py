"""A rank alone: gradients are exact, and what more ranks have left out before counts once."""

from __future__ import annotations

import torch

import sumpter.torch as hvd
from sumpter.torch import Compression

hvd.init()
weight = torch.nn.Parameter(torch.zeros(40, 24))
base = torch.optim.SGD([weight], 1.0)
codec = Compression.powersgd(rank=2)
optimizer = hvd.DistributedOptimizer(base, [("w", weight)], compression=codec)
whole = torch.randn(40, 24, generator=torch.Generator().manual_seed(7))


def step() -> None:
    optimizer.zero_grad()
    (weight * whole).sum().backward()
    optimizer.step()


step()
torch.testing.assert_close(weight.detach(), -whole)
# As a rank of a larger job, it is summed by its factors, and so are those that join it.
state = optimizer.state_dict()
assert state["compression"]["w"]["rounds"] == 1
state["compression"]["w"]["residual"] = torch.ones(40 * 24)
optimizer.load_state_dict(state)
step()
step()
torch.testing.assert_close(weight.detach(), -3 * whole - 1)
assert optimizer.state_dict()["compression"]["w"]["residual"] is None
hvd.shutdown()
