"""Trains some steps, from a file or from the start, and writes its state to another file.

Arguments: the rule, the steps of the run, and the two files; "-" is none.
"""

from __future__ import annotations

import sys

import torch

import sumpter.torch as hvd
from common import RANK, leave_result

KINDS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
}

kind, steps, source, target = sys.argv[1:]
hvd.init()
torch.manual_seed(RANK)
model = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.Linear(300, 7)).to(torch.bfloat16)
optimizer = KINDS[kind](model.parameters())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), on_servers=True)
first = 0
if source != "-":
    saved = torch.load(source)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["steps"]
for step in range(first, int(steps)):
    generator = torch.Generator().manual_seed(100 * step + RANK)
    optimizer.zero_grad()
    data = torch.randn(4, 200, generator=generator).bfloat16()
    model(data).float().square().mean().backward()
    optimizer.step()
state = optimizer.state_dict()
if RANK == 0 and target != "-":
    whole = {"model": model.state_dict(), "optimizer": state, "steps": int(steps)}
    torch.save(whole, target)
parts = list(model.state_dict().values())
parts += [part for of in state["state"].values() for part in of.values()]
leave_result(b"".join(part.contiguous().view(-1).view(torch.uint8).numpy() for part in parts))
hvd.shutdown()
