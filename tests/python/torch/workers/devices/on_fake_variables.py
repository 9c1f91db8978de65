"""Optimizers on the servers and asynchronous steps for parameters on the tests' device.

Each run is made twice, on the CPU and on the device, and must give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fake_device
import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same
from fake_device import OnFake, module_on_fake, on_fake, plain
from sumpter._core import staging

STEPS = 4

Values = list[torch.Tensor]

SGD = (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True})
ADAMW = (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1})


class Place:
    """Where a run has its tensors."""

    def __init__(self, on_device: bool) -> None:
        self.on_device = on_device

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        return on_fake(values) if self.on_device else values

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        torch.manual_seed(5)
        layers = [nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 7)]
        model = nn.Sequential(*layers).to(dtype)
        return module_on_fake(model) if self.on_device else model

    def loss(self, model: nn.Module, step: int, rank: int = RANK) -> torch.Tensor:
        dtype = next(model.parameters()).dtype
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x, y = torch.randn(8, 20, generator=generator), torch.randn(8, 7, generator=generator)
        x, y = self.tensor(x.to(dtype)), self.tensor(y.to(dtype))
        return 4 * nn.functional.mse_loss(model(x), y)

    def values(self, model: nn.Module) -> Values:
        found = [parameter.detach() for parameter in model.parameters()]
        assert all(isinstance(value, OnFake) == self.on_device for value in found)
        return [value.cpu().clone() for value in found]


def compare(run: Callable[[Place], Values]) -> Values:
    """Makes a run on the CPU and on the device."""
    expected, actual = run(Place(on_device=False)), run(Place(on_device=True))
    for one, other in zip(actual, expected, strict=True):
        assert one.isfinite().all(), "bytes of what is no number say nothing"
        same(one, other)
    return actual


def distributed(model: nn.Module, rule: tuple[Any, dict[str, Any]], **given: Any) -> Any:
    kind, options = rule
    return hvd.DistributedOptimizer(
        kind(model.parameters(), **options), model.named_parameters(), **given
    )


def state_of(optimizer: torch.optim.Optimizer) -> Values:
    state = optimizer.state_dict()["state"]
    named = [state[index] for index in sorted(state)]
    return [one[key].cpu() for one in named for key in sorted(one)]


def check_rules(dtype: torch.dtype, rule: tuple[Any, dict[str, Any]], overlap: bool) -> None:
    """Parameters and the state on the servers, which goes into another optimizer and on."""

    def run(place: Place) -> Values:
        model = place.model(dtype)
        if RANK != 0:
            with torch.no_grad():
                model[0].weight.zero_()
        optimizer = distributed(model, rule, on_servers=True, overlap_forward=overlap)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for step in range(STEPS):
            optimizer.zero_grad()
            place.loss(model, step).backward()
            optimizer.step()
            scheduler.step()
        optimizer.synchronize()
        found = [*place.values(model), *state_of(optimizer)]
        optimizer.load_state_dict(optimizer.state_dict())
        model.register_parameter("late", nn.Parameter(place.tensor(torch.ones(3, dtype=dtype))))
        optimizer.add_param_group({"params": [model.late]})
        place.loss(model, STEPS).backward()
        optimizer.step()
        optimizer.synchronize()
        return [*found, *place.values(model), *state_of(optimizer)]

    compare(run)


def check_that_what_reads_a_parameter_comes_after_it() -> None:
    """The host runs ahead of the device: gradients, made from parameters, are still to come."""
    fake = fake_device.device()

    def run(place: Place) -> Values:
        value = torch.arange(5000.0) / 64
        weight = nn.Parameter(place.tensor(value))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.25), on_servers=True)
        seen = []
        for _ in range(2 * STEPS):
            if place.on_device:
                gradient = on_fake(torch.full_like(value, torch.nan))
                # Kernels in streams do not count as changes.
                into, of = plain(gradient).data, plain(weight.detach())
                fake.launch(lambda into=into, of=of: into.copy_(of * (RANK + 1)))
                weight.grad = gradient
            else:
                weight.grad = weight.detach() * (RANK + 1)
            optimizer.step()
            copy = torch.full_like(value, torch.nan)
            of = plain(weight.detach())
            if place.on_device:
                fake.launch(lambda copy=copy, of=of: copy.copy_(of))
            else:
                copy.copy_(of)
            seen.append(copy)
        if place.on_device:
            fake.current().mark().synchronize()
        return seen

    compare(run)


def check_clipping(by: str) -> None:
    def run(place: Place) -> Values:
        model = place.model()
        optimizer = distributed(model, ADAMW, on_servers=True, deferred=True)
        norms = []
        for step in range(STEPS):
            optimizer.zero_grad()
            place.loss(model, step).backward()
            if by == "method":
                norms.append(optimizer.clip_grad_norm_(0.5))
            else:
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
        return [*norms, *place.values(model), *state_of(optimizer)]

    assert all(norm > 0.5 for norm in compare(run)[:STEPS])


def check_scaling() -> None:
    """One rank's loss overflows once: all skip the step."""

    def run(place: Place) -> Values:
        model = place.model(torch.bfloat16)
        optimizer = distributed(model, SGD, on_servers=True, deferred=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        scales, found = [], place.values(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            # The scaler's own tensors are on the CPU here.
            loss = place.loss(model, step).as_subclass(torch.Tensor)
            if step == 1 and RANK == WORLD_SIZE - 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            optimizer.clip_grad_norm_(1.5)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            before, found = found, place.values(model)
            skipped = all(torch.equal(a, b) for a, b in zip(before, found, strict=True))
            assert skipped == (step == 1), step
        return [torch.tensor(scales), *found, *state_of(optimizer)]

    compare(run)


def check_asynchronous(staleness: int | None, dtype: torch.dtype) -> None:
    """Steps in turn, so that both runs have one order."""

    def run(place: Place) -> Values:
        model = place.model(dtype)
        adam = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
        optimizer = hvd.DistributedOptimizer(
            adam, model.named_parameters(), op=hvd.Sum, staleness=staleness
        )
        for step in range(STEPS):
            for turn in ALL:
                if turn == RANK:
                    optimizer.zero_grad()
                    place.loss(model, step).backward()
                    optimizer.step()
                hvd.barrier()
        optimizer.synchronize()
        found = place.values(model)
        with torch.no_grad():
            model[0].weight.fill_(0.5)
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.synchronize()
        return [*found, *place.values(model)]

    compare(run)


def check_that_steps_overlap() -> None:
    """A rank that is behind holds the others up by no more than the bound."""
    weight = nn.Parameter(on_fake(torch.zeros(5000)))
    sgd = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, op=hvd.Sum, staleness=2)
    for _ in range(3 + 2 * RANK):
        weight.grad = on_fake(torch.full((5000,), -1.0))
        optimizer.step()
    optimizer.synchronize()
    total = float(sum(3 + 2 * rank for rank in ALL))
    same(weight.detach().cpu(), torch.full((5000,), total))


def check_local_sgd() -> None:
    def run(place: Place) -> Values:
        model = place.model()
        inner = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
        with hvd.LocalSGD(model, inner, sync_every=2):
            for step in range(STEPS):
                inner.zero_grad()
                place.loss(model, step).backward()
                inner.step()
        return place.values(model)

    compare(run)


def check_diloco(on_servers: bool, delay: int, alpha: float, dtype: torch.dtype) -> None:
    def run(place: Place) -> Values:
        model = place.model(dtype)
        inner = torch.optim.SGD(model.parameters(), lr=0.001, foreach=False)
        outer = torch.optim.SGD(
            model.parameters(), lr=0.7, momentum=0.9, nesterov=True, foreach=False
        )
        diloco = hvd.DiLoCo(model, inner, outer, 3, 2, delay, alpha, on_servers=on_servers)
        found = []
        with diloco:
            for step in range(4 * STEPS):
                inner.zero_grad()
                place.loss(model, step).backward()
                inner.step()
                if step == 7:
                    saved = diloco.state_dict()
                    found += [value.clone() for value in saved["theta"].values()]
                    diloco.load_state_dict(saved)
        found += diloco.global_parameters().values()
        outer_state = diloco.state_dict()["outer"]["state"]
        found += [outer_state[index]["momentum_buffer"].cpu() for index in sorted(outer_state)]
        return [*found, *place.values(model)]

    compare(run)


def check_sites() -> None:
    """Two ranks of a site, of which one takes part in the outer rounds."""
    leaders = hvd.add_process_set([0, 2])
    sites = [hvd.add_process_set([0, 1]), hvd.add_process_set([2])]
    site = sites[RANK // 2]

    def run(place: Place) -> Values:
        model = place.model()
        inner = torch.optim.SGD(model.parameters(), lr=0.001, foreach=False)
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9)
        given = {"process_set": leaders, "site": site, "fragment_sync_delay": 1}
        with hvd.DiLoCo(model, inner, outer, 2, 2, **given) as diloco:
            for step in range(STEPS):
                inner.zero_grad()
                place.loss(model, step, RANK // 2).backward()
                inner.step()
        return [*diloco.global_parameters().values(), *place.values(model)]

    compare(run)
    for done in (*sites, leaders):
        hvd.remove_process_set(done)


def check_that_ranks_on_the_cpu_take_part() -> None:
    def train(place: Place) -> Values:
        model = place.model()
        optimizer = distributed(model, ADAMW, on_servers=True, deferred=True)
        for step in range(STEPS):
            place.loss(model, step).backward()
            optimizer.clip_grad_norm_(0.5)
            optimizer.step()
        return [*place.values(model), *state_of(optimizer)]

    expected, actual = train(Place(on_device=False)), train(Place(on_device=RANK > 0))
    for one, other in zip(actual, expected, strict=True):
        same(one, other)


def check_failures() -> None:
    """What goes wrong with a round is an error on every rank, and other variables go on."""
    place = Place(on_device=True)
    for deferred in (False, True):
        model = place.model()
        optimizer = distributed(
            model, (torch.optim.SGD, {"lr": 0.1 + RANK}), on_servers=True, deferred=deferred
        )
        place.loss(model, 0).backward()
        with raises(hvd.MismatchError, "the update's step is"):
            optimizer.step()
    fake = fake_device.device()
    arrival, last = fake.arrival, WORLD_SIZE - 1
    for given in ({"on_servers": True}, {"staleness": 1}):
        weight = nn.Parameter(on_fake(torch.ones(9)))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), **given)
        weight.grad = on_fake(torch.ones(9))
        optimizer.step()
        # All have taken a step that is well.
        hvd.barrier()
        if last == RANK:
            fake.arrival = lambda stream, _: Failed(stream.mark())  # type: ignore[method-assign]
        kind = RuntimeError if last == RANK else hvd.MismatchError
        weight.grad = on_fake(torch.ones(9))
        with raises(kind, "an illegal address"):
            while True:
                optimizer.step()
        fake.arrival = arrival  # type: ignore[method-assign]
        hvd.barrier()
    check_rules(torch.float32, SGD, overlap=False)


class Failed:
    """Where a stream's work ends in an error."""

    def __init__(self, passed: fake_device.Event) -> None:
        self.passed = passed

    def synchronize(self) -> None:
        raise RuntimeError("an illegal address")


def check_refusals() -> None:
    weight = nn.Parameter(torch.ones(3, device="meta"))
    with raises(hvd.UnsupportedError, "parameter 0 is on meta", "CUDA devices"):
        hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), on_servers=True)


if __name__ == "__main__":
    staging.SLICE_BYTES = 8192
    fake_device.install(pause_s=0.002, streams_wait="--blocking" not in sys.argv)
    hvd.init()
    for given in ((torch.float32, SGD), (torch.float32, ADAMW), (torch.float16, SGD)):
        check_rules(*given, overlap=False)
    check_rules(torch.bfloat16, ADAMW, overlap=True)
    check_that_what_reads_a_parameter_comes_after_it()
    for by in ("method", "torch"):
        check_clipping(by)
    check_scaling()
    check_asynchronous(None, torch.float32)
    check_asynchronous(1, torch.bfloat16)
    check_that_steps_overlap()
    check_local_sgd()
    check_diloco(True, 0, 0.0, torch.float32)
    check_diloco(True, 2, 0.25, torch.bfloat16)
    check_diloco(False, 1, 0.5, torch.float32)
    if WORLD_SIZE == 3:
        check_sites()
    check_refusals()
    if WORLD_SIZE > 1:
        check_that_ranks_on_the_cpu_take_part()
        check_failures()
    hvd.barrier()
    hvd.shutdown()
