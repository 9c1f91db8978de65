"""A worker that trains parameters with AdamW, whose state is in the worker or on the servers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

import sumpter.torch as bps
from sumpter_lab.scaffold.jobs.rank import Worker


class Trainer(Worker):
    """One rank of a job; every gradient is one, so all elements stay equal."""

    def build(self, place: str, shapes: Sequence[tuple[int, ...]]) -> None:
        """Makes new parameters and their optimizer, which runs in `place`."""
        self._parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        named = [(f"p{index}", parameter) for index, parameter in enumerate(self._parameters)]
        adamw = torch.optim.AdamW(self._parameters, foreach=False)
        self._optimizer = bps.DistributedOptimizer(adamw, named, on_servers=place == "servers")
        self._reference = torch.nn.Parameter(torch.zeros(1))
        self._plain = torch.optim.AdamW([self._reference], foreach=False)

    def step(self, count: int) -> None:
        """Takes steps."""
        for _ in range(count):
            self._optimizer.zero_grad()
            torch.stack([parameter.sum() for parameter in self._parameters]).sum().backward()
            self._optimizer.step()
            self._reference.grad = torch.ones(1)
            self._plain.step()

    def trim(self) -> None:
        """Gives back to the system what the allocator keeps of memory that was freed."""
        ctypes.CDLL(None).malloc_trim(0)

    def check(self) -> None:
        """Raises unless every element is what AdamW makes of gradients of one."""
        expected = self._reference.detach()
        for index, parameter in enumerate(self._parameters):
            low, high = parameter.detach().aminmax()
            if not (torch.allclose(low, expected) and torch.allclose(high, expected)):
                raise ArithmeticError(
                    f"rank {self._rank}: tensor {index} has {low.item()} to {high.item()}, not "
                    f"{expected.item()}"
                )
