"""A script that begins as BytePS' examples do, with what ranks share, or as some do.

Arguments: where its steps are taken, and what is broadcast once there is a DistributedOptimizer.
"""

from __future__ import annotations

import sys

import torch

import sumpter.torch as bps
from common import ALL, RANK, same

on_servers = sys.argv[1] == "on servers"
bps.init()
torch.manual_seed(RANK)
model = torch.nn.Linear(4, 3)
sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
given = {"on_servers": True} if on_servers else {}
optimizer = bps.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), **given)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
if sys.argv[2] == "state":
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
start = model.bias.detach().clone()
for _ in range(3 if on_servers else 3 + RANK):
    optimizer.zero_grad()
    (-model.bias.sum()).backward()
    optimizer.step()
if not on_servers:
    optimizer.synchronize()
# With momentum 0.5, step n is 2 - 2**-n long, from 0 on.
ranks = [0] if on_servers else ALL
same(model.bias.detach(), start + sum(2 - 2.0**-n for rank in ranks for n in range(3 + rank)))
bps.shutdown()
