"""Optimizers on the servers, asynchronous steps and DiLoCo on one GPU, bit by bit as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cuda_weighted import Weighted, factors, on_host

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same

STEPS = 4

Values = list[torch.Tensor]

SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True})
ADAMW = (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1})


def compare(run: Callable[[str], Values]) -> None:
    for one, other in zip(run("cuda"), run("cpu"), strict=True):
        same(one, other)


def state_of(optimizer: torch.optim.Optimizer) -> Values:
    state = optimizer.state_dict()["state"]
    return on_host([state[i][key] for i in sorted(state) for key in sorted(state[i])])


def distributed(model: Weighted, rule: tuple[Any, dict[str, Any]], **given: Any) -> Any:
    kind, options = rule
    return hvd.DistributedOptimizer(
        kind(model.parameters(), **options), model.named_parameters(), **given
    )


def check_rules(dtype: torch.dtype, rule: tuple[Any, dict[str, Any]], overlap: bool) -> None:
    def run(device: str) -> Values:
        model = Weighted(dtype).to(device)
        optimizer = distributed(model, rule, on_servers=True, overlap_forward=overlap)
        seen = []
        for step in range(STEPS):
            optimizer.zero_grad()
            model(factors(step, device, dtype)).backward()
            optimizer.step()
            if not overlap:
                # Enqueued behind the new values.
                seen += [2 * parameter.detach() for parameter in model.values]
        optimizer.synchronize()
        seen += [parameter.detach().clone() for parameter in model.values]
        state = state_of(optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        model(factors(STEPS, device, dtype)).backward()
        optimizer.step()
        optimizer.synchronize()
        return [*on_host(seen), *state, *on_host(list(model.values)), *state_of(optimizer)]

    compare(run)


def check_deferred() -> None:
    """Clipped, scaled, and one step that all skip since one rank's loss overflows."""

    def run(device: str) -> Values:
        model = Weighted().to(device)
        optimizer = distributed(model, ADAMW, on_servers=True, deferred=True)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
        seen = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(factors(step, device))
            if step == 1 and RANK == WORLD_SIZE - 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = optimizer.clip_grad_norm_(1.5)
            assert norm.device.type == device
            scaler.step(optimizer)
            scaler.update()
            seen += [norm, torch.tensor(scaler.get_scale())]
        finite = [value.nan_to_num() for value in on_host(seen)]
        return [*finite, *on_host(list(model.values)), *state_of(optimizer)]

    compare(run)


def check_asynchronous(staleness: int | None) -> None:
    """Steps in turn; a learning rate that is a power of two leaves one rounding a step."""

    def run(device: str) -> Values:
        model = Weighted().to(device)
        sgd = (torch.optim.SGD, {"lr": 0.25})
        optimizer = distributed(model, sgd, op=hvd.Sum, staleness=staleness)
        for step in range(STEPS):
            for turn in ALL:
                if turn == RANK:
                    optimizer.zero_grad()
                    model(factors(step, device)).backward()
                    optimizer.step()
                hvd.barrier()
        optimizer.synchronize()
        return on_host(list(model.values))

    compare(run)


def check_local(make: Callable[[Weighted, torch.optim.Optimizer], Any]) -> None:
    def run(device: str) -> Values:
        model = Weighted().to(device)
        inner = torch.optim.SGD(model.parameters(), lr=0.25)
        with make(model, inner) as local:
            for step in range(3 * STEPS):
                inner.zero_grad()
                model(factors(step, device)).backward()
                inner.step()
        theta = local.global_parameters() if isinstance(local, hvd.DiLoCo) else {}
        return [*on_host(list(model.values)), *theta.values()]

    compare(run)


def diloco(delay: int, on_servers: bool) -> Callable[[Weighted, torch.optim.Optimizer], Any]:
    def make(model: Weighted, inner: torch.optim.Optimizer) -> hvd.DiLoCo:
        outer = torch.optim.SGD(model.parameters(), lr=0.5)
        return hvd.DiLoCo(model, inner, outer, 3, 2, delay, on_servers=on_servers)

    return make


def check_failures() -> None:
    model = Weighted().to("cuda")
    optimizer = distributed(model, (torch.optim.SGD, {"lr": 0.1 + RANK}), on_servers=True)
    model(factors(0, "cuda")).backward()
    with raises(hvd.MismatchError, "the update's step is"):
        optimizer.step()


if __name__ == "__main__":
    torch.cuda.set_device(0)
    hvd.init()
    check_rules(torch.float32, SGD, overlap=False)
    check_rules(torch.float32, ADAMW, overlap=True)
    check_rules(torch.float16, SGD, overlap=False)
    check_rules(torch.bfloat16, ADAMW, overlap=False)
    check_deferred()
    check_asynchronous(None)
    check_asynchronous(2)
    check_local(lambda model, inner: hvd.LocalSGD(model, inner, 2))
    check_local(diloco(delay=0, on_servers=True))
    check_local(diloco(delay=2, on_servers=True))
    check_local(diloco(delay=1, on_servers=False))
    check_failures()
    hvd.barrier()
    hvd.shutdown()
