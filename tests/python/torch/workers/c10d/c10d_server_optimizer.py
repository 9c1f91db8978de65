"""DDP with the optimizer on the servers gives the bytes that DistributedOptimizer gives there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, join_torch, raises, same

STEPS = 4


class Net(nn.Module):
    """Some layers, of which one may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.branch = nn.Linear(12, 300), nn.Linear(300, 300)
        self.last = nn.Linear(300, 7)

    def forward(self, data: torch.Tensor, skips: bool = False) -> torch.Tensor:
        data = torch.tanh(self.first(data))
        return self.last(data if skips else data + self.branch(data))


def batch(step: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 100 * part + RANK)
    return torch.randn(8, 12, generator=generator)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for n, p in model.named_parameters() if n.endswith("bias")], "lr": 0.003},
        {"params": [p for n, p in model.named_parameters() if n.endswith("weight")]},
    ]
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: int = 1, skips: bool = False
) -> Iterator[torch.Tensor]:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(parts - 1):
            if isinstance(model, DistributedDataParallel):
                with model.no_sync():
                    model(batch(step, part), skips).square().mean().backward()
            else:
                model(batch(step, part), skips).square().mean().backward()
        model(batch(step, parts), skips).square().mean().backward()
        optimizer.step()
        scheduler.step()
    state = optimizer.state_dict()["state"]
    slots = [state[index][slot] for index in sorted(state) for slot in ("exp_avg", "exp_avg_sq")]
    yield from (p.detach().clone() for p in model.parameters())
    yield from slots


def by_ddp(**options: Any) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.05, **options)
    return model, hvd.server_optimizer(model, adamw(model))


join_torch()
for parts, skips, options in (
    (1, False, {}),
    (1, False, {"gradient_as_bucket_view": True}),
    (1, False, {"static_graph": True}),
    (3, False, {}),
    (1, True, {"find_unused_parameters": True}),
):
    plain = Net()
    optimizer = hvd.DistributedOptimizer(
        adamw(plain), plain.named_parameters(), backward_passes_per_step=parts, on_servers=True
    )
    expected = list(train(plain, optimizer, parts, skips))
    ours = list(train(*by_ddp(**options), parts, skips))
    for one, other in zip(ours, expected, strict=True):
        same(one, other)

# The state goes into an optimizer in the worker, and back.
model, optimizer = by_ddp()
list(train(model, optimizer))
saved = optimizer.state_dict()
assert not optimizer.state
worker_side = Net()
worker_side.load_state_dict(model.module.state_dict())
plain = adamw(worker_side)
plain.load_state_dict(saved)
again = DistributedDataParallel(worker_side)
continued = hvd.server_optimizer(again, plain)
for one, other in zip(train(model, optimizer), train(again, continued), strict=True):
    same(one, other)

# What would have no effect is an error, and so is what cannot be.
model, optimizer = by_ddp()
model(batch(0)).square().mean().backward()
nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
with raises(ValueError, "changed between backward() and step()"):
    optimizer.step()
with raises(ValueError, "no gradients were exchanged"):
    optimizer.step()
model(batch(0)).square().mean().backward()
with raises(AssertionError, "computed twice before step()"):
    model(batch(0)).square().mean().backward()
model, optimizer = by_ddp()
with raises(hvd.UnsupportedError, "wrap the model anew"):
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
with raises(ValueError, "has a communication hook already"):
    hvd.server_optimizer(model, adamw(model))
with raises(ValueError, "the model is a Net"):
    hvd.server_optimizer(Net(), adamw(Net()))
fresh = DistributedDataParallel(Net())
with raises(ValueError, "lacks parameters of the model: branch.weight"):
    part = [*fresh.module.first.parameters(), *fresh.module.last.parameters()]
    hvd.server_optimizer(fresh, torch.optim.SGD(part, lr=0.1))
with raises(ValueError, "that the model does not average"):
    more = [*fresh.parameters(), nn.Parameter(torch.ones(1))]
    hvd.server_optimizer(fresh, torch.optim.SGD(more, lr=0.1))
with raises(hvd.UnsupportedError, "LBFGS"):
    hvd.server_optimizer(fresh, torch.optim.LBFGS(fresh.parameters()))
with raises(ValueError, "DistributedOptimizer already"):
    hvd.server_optimizer(fresh, optimizer_of := hvd.DistributedOptimizer(adamw(fresh)))
gloo = dist.new_group(backend="gloo")
with raises(ValueError, "backend for cpu is gloo"):
    model = DistributedDataParallel(Net(), process_group=gloo)
    hvd.server_optimizer(model, adamw(model))
alone = [dist.new_group([rank]) for rank in range(WORLD_SIZE)][RANK]
if WORLD_SIZE > 1:
    with raises(hvd.UnsupportedError, f"has 1 of {WORLD_SIZE} ranks"):
        model = DistributedDataParallel(Net(), process_group=alone)
        hvd.server_optimizer(model, adamw(model))

# Hyper-parameters that differ fail backward() on all ranks; other models go on.
if WORLD_SIZE > 1:
    model, optimizer = by_ddp()
    optimizer.param_groups[0]["lr"] = 0.1 + RANK
    with raises(Exception, "the update's shrink is"):
        model(batch(0)).square().mean().backward()
    with raises(hvd.MismatchError, "the update's shrink is"):
        optimizer.step()
list(train(*by_ddp()))
dist.destroy_process_group()
