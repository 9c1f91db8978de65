"""The hook that DDP calls for the optimizer on the servers, with buckets on the tests' device."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import fake_device
import sumpter.torch as hvd
from common import ALL, RANK, join_torch, raises, same
from fake_device import OnFake, on_fake, plain
from sumpter._core import membership, staging
from sumpter.torch.c10d.server_optimizer import _BucketUpdates
from sumpter.torch.optimizer import wrap_on_servers

STEPS = 5
SIZES = (5000, 7, 3000)
BLOCKING = "--blocking" in sys.argv


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


class Bucket:
    """As DDP hands one to a hook: some parameters, and a buffer of which gradients are parts."""

    def __init__(self, index: int, parameters: list[nn.Parameter]) -> None:
        self._index, self._parameters = index, parameters
        sizes = [parameter.numel() for parameter in parameters]
        self._buffer = on_fake(torch.full((sum(sizes),), torch.nan))
        self._gradients = list(self._buffer.split(sizes))
        fake = fake_device.device()
        for gradient, parameter in zip(self._gradients, parameters, strict=True):
            # Kernels in streams do not count as changes.
            into, of = plain(gradient).data, plain(parameter.detach())
            fake.launch(lambda into=into, of=of: into.copy_(gradient_of(of)))

    def index(self) -> int:
        return self._index

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        return self._gradients

    def buffer(self) -> torch.Tensor:
        return self._buffer


def gradient_of(value: torch.Tensor) -> torch.Tensor:
    return value * (RANK + 1) / 4


def parameters(on_device: bool) -> list[nn.Parameter]:
    values = [torch.arange(float(size)) / 64 for size in SIZES]
    return [nn.Parameter(on_fake(value) if on_device else value) for value in values]


def adamw(given: list[nn.Parameter], lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.AdamW(given, lr=lr, weight_decay=0.1)


def by_hook(lr: float = 0.01) -> tuple[list[nn.Parameter], Any]:
    given = parameters(on_device=True)
    names = {parameter: str(index) for index, parameter in enumerate(given)}
    optimizer, backend = adamw(given, lr), dist.group.WORLD._get_backend(torch.device("cpu"))
    return given, wrap_on_servers(optimizer, lambda: _BucketUpdates(names, optimizer, backend))


def backward(given: list[nn.Parameter], optimizer: Any) -> None:
    """Sends two buckets within a backward pass, and waits at its end, as DDP does."""
    futures: list[Any] = []

    def send(_: torch.Tensor) -> None:
        for bucket in (Bucket(0, given[:2]), Bucket(1, given[2:])):
            futures.append(optimizer._exchange.send(bucket))

    root = torch.zeros(1, requires_grad=True)
    root.register_hook(send)
    root.sum().backward()
    for future in futures:
        assert BLOCKING or future.done()
        future.wait()


def check_that_the_host_goes_on() -> None:
    """Rank 1 begins when rank 0 has made all its steps: a thread that waited would for ever."""
    given, optimizer = by_hook()
    # All ranks declare their variables together.
    backward(given, optimizer)
    optimizer.step()
    if RANK == 1 and not BLOCKING:
        store().get("all steps made")
    for _ in range(STEPS):
        backward(given, optimizer)
        optimizer.step()
    if RANK == 0:
        store().set("all steps made", "")
    # What the ranks mirror is of rounds that are over, also where only streams wait for them.
    state = optimizer.state_dict()["state"]
    plain_parameters = parameters(on_device=False)
    expected = hvd.DistributedOptimizer(adamw(plain_parameters), on_servers=True)
    for _ in range(STEPS + 1):
        for parameter in plain_parameters:
            parameter.grad = gradient_of(parameter.detach())
        expected.step()
    for one, other in zip(given, plain_parameters, strict=True):
        assert isinstance(one, OnFake)
        same(one.detach().cpu(), other.detach())
    for index, wanted in expected.state_dict()["state"].items():
        for key, value in wanted.items():
            same(state[index][key], value)
    # They go on from what is loaded.
    optimizer.load_state_dict(optimizer.state_dict())
    backward(given, optimizer)
    optimizer.step()
    with raises(ValueError, "no gradients were exchanged"):
        optimizer.step()


def check_a_mismatch() -> None:
    """Ranks have gone on when it is found: parameters are no numbers, and the next call raises."""
    given, optimizer = by_hook(lr=0.1 + RANK)
    if BLOCKING:
        with raises(Exception, "the update's shrink is"):
            backward(given, optimizer)
        return
    backward(given, optimizer)
    fake_device.device().current().mark().synchronize()
    assert all(plain(parameter).isnan().all() for parameter in given)
    store().set(f"mismatch.{RANK}", "")
    for rank in ALL:
        store().get(f"mismatch.{rank}")
    with raises(hvd.MismatchError, "the update's shrink is"):
        optimizer.step()
    # It may have been another variable's error.
    with contextlib.suppress(hvd.MismatchError):
        membership.current().raise_late()
    # Other models go on.
    given, optimizer = by_hook()
    backward(given, optimizer)
    optimizer.step()


if __name__ == "__main__":
    staging.SLICE_BYTES = 8192
    fake_device.install(pause_s=0.002)
    fake_device.install_for_torch_distributed()
    join_torch()
    hvd.init()
    check_that_the_host_goes_on()
    check_a_mismatch()
    dist.destroy_process_group()
    hvd.shutdown()
