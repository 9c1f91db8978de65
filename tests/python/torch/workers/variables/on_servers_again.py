"""With a job goes the optimizer's state on its servers, unless it was fetched before."""

from __future__ import annotations

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, raises, same


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(10 * number + RANK)
    optimizer.zero_grad()
    model(torch.randn(5, 4, generator=generator)).square().sum().backward()
    optimizer.step()


hvd.init()
torch.manual_seed(1)
model = nn.Linear(4, 3)
adam = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), on_servers=True)
step(model, optimizer, 0)
saved = optimizer.state_dict()
before = [parameter.detach().clone() for parameter in model.parameters()]
step(model, optimizer, 1)
after = [parameter.detach().clone() for parameter in model.parameters()]
hvd.shutdown()
hvd.init()
with raises(ValueError, "job that is over", "load_state_dict"):
    step(model, optimizer, 1)
with torch.no_grad():
    for parameter, value in zip(model.parameters(), before, strict=True):
        parameter.copy_(value)
optimizer.load_state_dict(saved)
step(model, optimizer, 1)
for parameter, value in zip(model.parameters(), after, strict=True):
    same(parameter.detach(), value)
hvd.shutdown()
