"""A rank of the job of byteps-theorem2.

    sumpter run -n 3 -s 1 -- python -m sumpter_lab.reproduce.theorem2_rank FOLDER STEPS

Ranks take steps one after the other in an order that is drawn, and each compares what it then has
with a plain asynchronous parameter server of the same steps, which it computes by itself. The
result of each optimizer is written to FOLDER.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sumpter.torch as hvd

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.05}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
}


def new_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 3))


def backward(model: nn.Module, step: int) -> None:
    """The gradient of a batch that the step's number gives."""
    draw = torch.Generator().manual_seed(step)
    x, y = torch.randn(4, 6, generator=draw), torch.randn(4, 3, generator=draw)
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()


def plain(kind: str, order: list[int]) -> list[torch.Tensor]:
    """The weights of a parameter server that adds each worker's change and answers at once."""
    optimizer, options = OPTIMIZERS[kind]
    server = [parameter.detach().clone() for parameter in new_model().parameters()]
    models = [new_model() for _ in range(hvd.size())]
    pulled = [[value.clone() for value in server] for _ in models]
    optimizers = [optimizer(model.parameters(), **options) for model in models]
    for step, worker in enumerate(order):
        backward(models[worker], step)
        optimizers[worker].step()
        own = models[worker].parameters()
        for value, before, parameter in zip(server, pulled[worker], own, strict=True):
            value += parameter.detach() - before
            before.copy_(value)
            parameter.data.copy_(value)
    return server


def trained(kind: str, order: list[int]) -> list[torch.Tensor]:
    """The weights of the job, whose ranks take their steps in this order."""
    optimizer, options = OPTIMIZERS[kind]
    model = new_model()
    shared = hvd.DistributedOptimizer(
        optimizer(model.parameters(), **options),
        model.named_parameters(),
        op=hvd.Sum,
        staleness=None,
    )
    for step, worker in enumerate(order):
        if worker == hvd.rank():
            backward(model, step)
            shared.step()
        hvd.barrier()
    shared.synchronize()
    return [parameter.detach() for parameter in model.parameters()]


def main(folder: str, steps: str) -> None:
    hvd.init()
    rows = []
    for kind in OPTIMIZERS:
        order = random.Random(kind).choices(range(hvd.size()), k=int(steps))
        pairs = zip(trained(kind, order), plain(kind, order), strict=True)
        equal = all(torch.equal(one, other) for one, other in pairs)
        rows.append({"rank": hvd.rank(), "optimizer": kind, "steps": len(order), "equal": equal})
    (Path(folder) / f"rank-{hvd.rank()}.json").write_text(json.dumps(rows))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
