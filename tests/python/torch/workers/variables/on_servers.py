"""The optimizer on the servers does what it does in the workers, and its state comes and goes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises, same

Kinds = dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]]

KINDS: Kinds = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    "lion": (hvd.Lion, {"lr": 1e-3, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
}


def new_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 7))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    return torch.randn(8, 20, generator=generator), torch.randn(8, 7, generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()


def distributed(model: nn.Module, name: str, **given: Any) -> torch.optim.Optimizer:
    kind, options = KINDS[name]
    optimizer = kind(model.parameters(), **options)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **given)


def near(a: nn.Module, b: nn.Module) -> None:
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=1e-3)


hvd.init()
for name in KINDS:
    # Other values on other ranks: they become rank 0's.
    here = new_model()
    if RANK != 0:
        nn.init.zeros_(here[0].weight)
    there = new_model()
    theirs = distributed(there, name)
    ours = distributed(here, name, on_servers=True)
    train(there, theirs, range(6))
    train(here, ours, range(6))
    assert not ours.state, "the state is on the servers"
    if name in ("sgd", "lion"):
        for one, other in zip(here.parameters(), there.parameters(), strict=True):
            same(one.detach(), other.detach())
    near(here, there)
    saved = ours.state_dict()
    for index, state in theirs.state_dict()["state"].items():
        for key, value in state.items():
            torch.testing.assert_close(saved["state"][index][key], value, rtol=0.01, atol=1e-3)
    # Into a plain optimizer, and from there to servers again: as if it had never stopped.
    plain_model = copy.deepcopy(here)
    kind, options = KINDS[name]
    plain = kind(plain_model.parameters(), **options)
    plain.load_state_dict(saved)
    again = hvd.DistributedOptimizer(plain, plain_model.named_parameters(), on_servers=True)
    train(here, ours, range(6, 9))
    train(plain_model, again, range(6, 9))
    for one, other in zip(here.parameters(), plain_model.parameters(), strict=True):
        same(one.detach(), other.detach())
    # Back to where it was, with the parameters that belong to it.
    ours.load_state_dict(saved)

# Gradients of two passes make one step, sums instead of averages, and groups with options of their
# own; one parameter is never reached.
models = []
for on_servers in (False, True):
    model = new_model()
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.001}]
    groups[0]["params"] = [*groups[0]["params"], model.unused]
    sgd = torch.optim.SGD(groups, lr=0.01, momentum=0.9, dampening=0.5, weight_decay=0.01)
    optimizer = hvd.DistributedOptimizer(
        sgd,
        model.named_parameters(),
        backward_passes_per_step=2,
        op=hvd.Sum,
        on_servers=on_servers,
    )
    for step in range(4):
        optimizer.zero_grad()
        for half in range(2):
            x, y = batch(2 * step + half)
            nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    models.append(model)
for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
    same(one.detach(), other.detach())

# Parameters that come later, with a state of their own; the rest goes on.
for name in ("sgd", "adamw", "adagrad"):
    models = []
    for on_servers in (False, True):
        model = new_model()
        kind, options = KINDS[name]
        optimizer = kind(model.parameters(), **options)
        if on_servers:
            optimizer = distributed(model, name, on_servers=True)
        for step in range(5):
            if step == 2:
                model.late = nn.Parameter(torch.full((7,), 3.0 if on_servers and RANK else 0.5))
                optimizer.add_param_group({"params": [model.late], "lr": 0.05})
                if name == "adagrad" and not on_servers:
                    # What torch forgets of late parameters.
                    start = {"step": torch.tensor(0.0), "sum": torch.full((7,), 0.1)}
                    optimizer.state[model.late] = start
            optimizer.zero_grad()
            x, y = batch(step)
            shifted = model(x) + model.late if step >= 2 else model(x)
            nn.functional.mse_loss(shifted, y).backward()
            for parameter in () if on_servers else model.parameters():
                hvd.allreduce_(parameter.grad)
            optimizer.step()
        models.append((model, optimizer.state_dict()["state"]))
    near(models[0][0], models[1][0])
    assert models[0][1].keys() == models[1][1].keys()
    if name == "sgd":
        same(models[1][0].late.detach(), models[0][0].late.detach())
# Frozen parameters stay, as in torch, and train once they need gradients.
models = []
for on_servers in (False, True):
    model = new_model()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    if on_servers:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), on_servers=True)
    for step in range(6):
        if step == 2:
            model[0].weight.requires_grad_()
            model[2].bias.requires_grad_(False)
        optimizer.zero_grad()
        x, y = batch(step)
        nn.functional.mse_loss(model(x), y).backward()
        for parameter in () if on_servers else model.parameters():
            if parameter.grad is not None:
                hvd.allreduce_(parameter.grad)
        optimizer.step()
    models.append(model)
for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
    same(one.detach(), other.detach())

# A state that is saved and loaded before a late parameter has a gradient.
model = new_model()
optimizer = distributed(model, "adagrad", on_servers=True)
train(model, optimizer, range(1))
model.late = nn.Parameter(torch.ones(3))
optimizer.add_param_group({"params": [model.late]})
optimizer.load_state_dict(optimizer.state_dict())
train(model, optimizer, range(1, 2))
assert torch.equal(optimizer.state_dict()["state"][4]["sum"], torch.full((3,), 0.1))

optimizer = distributed(new_model(), "sgd", on_servers=True)
with raises(hvd.UnsupportedError, "group 1.0 is not a contiguous tensor of floats"):
    optimizer.add_param_group({"params": [torch.ones(4, 2).t().requires_grad_()]})
assert len(optimizer.param_groups) == 1

# A gradient of another element type travels in the parameter's.
if hasattr(torch.Tensor, "grad_dtype"):
    models = [new_model(), new_model()]
    for model, narrow in zip(models, (True, False), strict=True):
        optimizer = distributed(model, "adamw", on_servers=True)
        generator = torch.Generator().manual_seed(RANK)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad_dtype = torch.bfloat16 if narrow else torch.float32
                gradient = torch.randn(parameter.shape, generator=generator).bfloat16()
                parameter.grad = gradient if narrow else gradient.float()
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        same(one.detach(), other.detach())

if WORLD_SIZE > 2:
    # Among some of the ranks.
    some = hvd.add_process_set([0, 2])
    model = new_model()
    if RANK == 2:
        nn.init.zeros_(model[0].weight)
    if some.included():
        optimizer = distributed(model, "adamw", on_servers=True, process_set=some)
        train(model, optimizer, range(3))
        optimizer.load_state_dict(optimizer.state_dict())
        train(model, optimizer, range(3))
        for parameter in model.parameters():
            own = parameter.detach().flatten().unsqueeze(0)
            for other in hvd.allgather(own, process_set=some):
                same(other, own[0])
    else:
        with raises(hvd.UnsupportedError, "is outside", "plain optimizer"):
            distributed(model, "adamw", on_servers=True, process_set=some)

# Scripts of Horovod synchronize before a step, and at the end: neither is a step more.
models = []
for synchronizes in (False, True):
    model = new_model()
    optimizer = distributed(model, "sgd", on_servers=True)
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(step)
        nn.functional.mse_loss(model(x), y).backward()
        if synchronizes:
            optimizer.synchronize()
        optimizer.step()
    if synchronizes:
        optimizer.synchronize()
    # Without a backward pass, a step is one by the gradients that there are.
    optimizer.step()
    models.append(model)
for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
    same(one.detach(), other.detach())

# What cannot be, is refused where it is asked for.
model = new_model()
with raises(hvd.UnsupportedError, "LBFGS"):
    lbfgs = torch.optim.LBFGS(model.parameters())
    hvd.DistributedOptimizer(lbfgs, model.named_parameters(), on_servers=True)


class Lion(torch.optim.SGD):
    """Another package's optimizer of a known name."""


with raises(hvd.UnsupportedError, "__main__.Lion", "sumpter.torch.Lion"):
    distributed_lion = Lion(model.parameters(), lr=0.1)
    hvd.DistributedOptimizer(distributed_lion, model.named_parameters(), on_servers=True)
with raises(ValueError, "op=Average or op=Sum"):
    distributed(model, "sgd", on_servers=True, op=hvd.Max)
with raises(ValueError, "no compression"):
    distributed(model, "sgd", on_servers=True, compression=hvd.Compression.fp16)
optimizer = distributed(model, "sgd", on_servers=True)
train(model, optimizer, range(1))
with torch.no_grad():
    model[0].weight.mul_(2)
x, y = batch(0)
with raises(ValueError, "changed in the worker"):
    nn.functional.mse_loss(model(x), y).backward()
optimizer.load_state_dict(optimizer.state_dict())
train(model, optimizer, range(1))
nn.functional.mse_loss(model(x), y).backward()
nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
with raises(ValueError, "between backward"):
    optimizer.step()
for parameter in model.parameters():
    gathered = hvd.allgather(parameter.detach().flatten().unsqueeze(0))
    assert len(gathered) == WORLD_SIZE
    for other in gathered:
        same(other, gathered[0])
hvd.shutdown()
