"""DDP with gradients that are ready: a backward pass without any compute.

Shows what a training script gets from DDP's buckets over a backend when communication is all
there is to do. The module has the real model's parameters; its backward pass hands autograd one
stored gradient after the other, last parameter first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumpter_lab.scaffold.jobs.payload import Payload


class GradientReplay:
    """One DDP module over one process group, in rounds."""

    def __init__(
        self,
        payload: Payload,
        shapes: Sequence[tuple[int, ...]],
        group: dist.ProcessGroup | None,
    ) -> None:
        self._payload = payload
        self._module = Replayed(shapes, device=payload.device)
        # All ranks have the same zeros: a first broadcast of them would only take time.
        self._ddp = DistributedDataParallel(self._module, process_group=group, init_sync=False)
        self._loss: torch.Tensor | None = None

    def prepare(self, number: int) -> None:
        for parameter in self._module.parameters():
            parameter.grad = None
        self._payload.fill([self._module.gradients], number)
        self._loss = self._ddp(torch.zeros((), device=self._payload.device, requires_grad=True))

    def run(self) -> None:
        assert self._loss is not None, "prepare() comes first"
        self._loss.backward()
        self._loss = None

    def check(self, number: int) -> None:
        gradients = [parameter.grad for parameter in self._module.parameters()]
        if any(gradient is None for gradient in gradients):
            raise ArithmeticError("a parameter got no gradient")
        self._payload.check(gradients, number, average=True)


class Replayed(torch.nn.Module):
    """Parameters of given shapes; every gradient is a view of the start of one long tensor.

    The backward pass calls `before` with the index of each parameter before it hands in the
    parameter's gradient.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        before: Callable[[int], None] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self._before = before
        layers = [torch.zeros(shape, device=device) for shape in shapes]
        self.layers = torch.nn.ParameterList(layers)
        self.gradients = torch.zeros(max(layer.numel() for layer in layers), device=device)

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            gradient = self.gradients[: layer.numel()].view(layer.shape)
            before = None if self._before is None else functools.partial(self._before, index)
            loss = _Replay.apply(loss, layer, gradient, before)
        return loss


class _Replay(torch.autograd.Function):
    """The identity, whose backward pass gives the parameter its stored gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: torch.Tensor,
        layer: torch.Tensor,
        gradient: torch.Tensor,
        before: Callable[[], None] | None,
    ) -> torch.Tensor:
        ctx.gradient, ctx.before = gradient, before
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.before is not None:
            ctx.before()
        return incoming, ctx.gradient, None, None
