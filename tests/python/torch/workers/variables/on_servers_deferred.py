"""Steps on servers that are decided after backward(): clipped by norm, scaled, skipped."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises, same
from sumpter import UnsupportedError

STEPS = 6


def new_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 7))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    x, y = torch.randn(8, 20, generator=generator), torch.randn(8, 7, generator=generator)
    return 100 * nn.functional.mse_loss(model(x), y)


def distributed(model: nn.Module, kind: Any, given: dict[str, Any], on_servers: bool) -> Any:
    return hvd.DistributedOptimizer(
        kind(model.parameters(), **given),
        model.named_parameters(),
        on_servers=on_servers,
        deferred=on_servers,
    )


def clipped(
    kind: Any, given: dict[str, Any], max_norm: float, by: str
) -> tuple[list[torch.Tensor], nn.Module, Any]:
    """Trains with clipped gradients: the norms, the model, its optimizer."""
    model = new_model()
    optimizer = distributed(model, kind, given, on_servers=by != "workers")
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        if by == "method":
            norms.append(optimizer.clip_grad_norm_(max_norm))
        else:
            if by == "workers":
                optimizer.synchronize()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm))
        if by == "workers":
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return norms, model, optimizer


def equal(a: nn.Module, b: nn.Module, exactly: bool) -> None:
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        if exactly:
            same(one.detach(), other.detach())
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def check_clipping() -> None:
    sgd = (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9})
    adamw = (torch.optim.AdamW, {"lr": 0.01})
    for kind, given in (sgd, adamw):
        # Never clipped, and clipped in each step.
        for max_norm in (1e6, 0.5):
            norms, model, _ = clipped(kind, given, max_norm, "workers")
            for by in ("torch", "method"):
                found, ours, _ = clipped(kind, given, max_norm, by)
                torch.testing.assert_close(torch.stack(found), torch.stack(norms))
                assert found[0].dtype == torch.float32
                equal(model, ours, exactly=kind is torch.optim.SGD and max_norm > 1)
    everyone = hvd.allgather_object([norm.item() for norm in found])
    assert all(norms == everyone[0] for norms in everyone), "not the same bits on all ranks"


def check_scaling() -> None:
    """Losses of one rank overflow twice: all skip, and their scales are those of a plain run."""
    runs = []
    for on_servers in (False, True):
        for explicit in (False, True):
            model = new_model()
            given = {"lr": 0.01, "momentum": 0.9}
            optimizer = distributed(model, torch.optim.SGD, given, on_servers)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
            scales = []
            for step in range(2 * STEPS):
                optimizer.zero_grad()
                loss = loss_of(model, step)
                if step in (3, 4) and RANK == WORLD_SIZE - 1:
                    loss = loss * float("inf")
                before = [p.detach().clone() for p in model.parameters()]
                scaler.scale(loss).backward()
                # As Horovod's scripts do; on servers, it is not needed.
                if not on_servers or explicit:
                    optimizer.synchronize()
                if explicit:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.5)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
                skipped = step in (3, 4)
                for then, now in zip(before, model.parameters(), strict=True):
                    assert torch.equal(then, now.detach()) == skipped, (step, on_servers)
            runs.append((scales, model))
    (plain, plain_clipped), (ours, ours_clipped) = runs[:2], runs[2:]
    assert plain[0] == plain_clipped[0] == ours[0] == ours_clipped[0], [r[0] for r in runs]
    assert plain[0][4] < plain[0][2] < plain[0][-1] * 8, plain[0]
    # The scales are powers of two, so nothing is rounded.
    equal(plain[1], ours[1], exactly=True)
    equal(plain_clipped[1], ours_clipped[1], exactly=False)


def check_late() -> None:
    """A parameter that backward reaches on one rank only, and one on none."""
    models = []
    for on_servers in (False, True):
        model = new_model()
        model.register_parameter("some", nn.Parameter(torch.ones(3)))
        model.register_parameter("none", nn.Parameter(torch.ones(3)))
        optimizer = distributed(model, torch.optim.Adam, {"lr": 0.1}, on_servers)
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, step) + (model.some.square().sum() if RANK == 0 else 0)
            loss.backward()
            if on_servers:
                norm = optimizer.clip_grad_norm_(1.0)
                optimizer.step()
            else:
                optimizer.synchronize()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with optimizer.skip_synchronize():
                    optimizer.step()
        models.append((model, norm))
    torch.testing.assert_close(models[0][1], models[1][1])
    equal(models[0][0], models[1][0], exactly=False)


def check_refusals() -> None:
    model = new_model()
    optimizer = distributed(model, torch.optim.SGD, {"lr": 0.01}, on_servers=True)
    loss_of(model, 0).backward()
    gradient = model[0].weight.grad
    assert gradient.shape == (300, 20) and "0.weight" in repr(gradient)
    with raises(UnsupportedError, "order 1"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)
    with raises(UnsupportedError, "0.weight: with deferred=True"):
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    with raises(UnsupportedError, "tensor of shape"):
        gradient.mul_(torch.ones(300, 20))
    with raises(UnsupportedError, "call backward() once"):
        loss_of(model, 0).backward()
    gradient.mul_(3).div_(torch.tensor(2.0))
    assert gradient.factor == 1.5
    optimizer.step()
    assert model[0].weight.grad is None
    with raises(ValueError, "of a step that is over"):
        torch.linalg.vector_norm(gradient)
    # Gradients that are not finite cannot be clipped: nothing changes.
    before = [parameter.detach().clone() for parameter in model.parameters()]
    (loss_of(model, 1) * float("nan")).backward()
    assert optimizer.clip_grad_norm_(1.0).isnan()
    with raises(ValueError, "the step was skipped"):
        optimizer.step()
    for then, now in zip(before, model.parameters(), strict=True):
        same(then, now.detach())
    loss_of(model, 2).backward()
    with raises(RuntimeError, "non-finite"):
        model[0].weight.grad.mul_(float("inf"))
        optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True)
    # What is forgotten is skipped, and the next step is one like any other.
    optimizer.load_state_dict(optimizer.state_dict())
    loss_of(model, 3).backward()
    optimizer.step()
    with raises(ValueError, "deferred=True is for on_servers=True"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), deferred=True)
    plain = hvd.DistributedOptimizer(
        torch.optim.SGD(new_model().parameters(), lr=1), on_servers=True
    )
    with raises(ValueError, "with deferred=True"):
        plain.clip_grad_norm_(1.0)


hvd.init()
check_clipping()
check_scaling()
check_late()
check_refusals()
hvd.shutdown()
