"""A worker that trains for a while, synchronously or asynchronously, with computing emulated."""

from __future__ import annotations

import time
from typing import Any

import torch

import sumpter.torch as bps
from sumpter_lab.scaffold.jobs.rank import Worker


class Stepper(Worker):
    """One rank of a job: its steps add one to its own part of the parameters."""

    def share(self, staleness: int | None) -> None:
        """Has all ranks share new parameters, of zeros."""
        (shape,) = self._shapes
        self._parameter = torch.nn.Parameter(torch.zeros(shape))
        self._parameter.grad = torch.zeros(shape)
        sgd = torch.optim.SGD([self._parameter], lr=1.0)
        self._optimizer = bps.DistributedOptimizer(sgd, op=bps.Sum, staleness=staleness)
        self._steps = 0

    def train(self, compute_s: float, seconds: float, together: bool) -> dict[str, Any]:
        """Takes steps for so long; when `together`, as many as all do."""
        own = self._own(self._parameter.grad)
        cpu_s, start = time.process_time(), time.perf_counter()
        while True:
            # Of synchronous steps all ranks must take the same number: rank 0 says when to end.
            over = time.perf_counter() - start >= seconds
            if bps.broadcast_object(over, 0, name="over") if together else over:
                break
            time.sleep(compute_s)
            self._parameter.grad.zero_()
            own.fill_(-1.0)
            self._optimizer.step()
            self._steps += 1
        took = time.perf_counter() - start
        cpu_s = time.process_time() - cpu_s
        return {"steps": self._steps, "seconds": took, "cpu_s": cpu_s}

    def check(self, mode: str, number: int) -> None:
        """Raises unless the parameters have each step of each rank once, turn `number`."""
        if mode != "synchronous":
            self._optimizer.synchronize()
        steps = bps.allgather(torch.tensor([self._steps])).tolist()
        for rank, expected in enumerate(steps):
            part = self._own(self._parameter.detach(), rank)
            if not bool((part == expected).all()):
                found = part.unique().tolist()
                raise AssertionError(
                    f"turn {number}, {mode}: {found} of {expected} steps of rank {rank}"
                )

    def _own(self, values: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        """The part of a rank, of this one by default."""
        return values.chunk(self._world_size)[self._rank if rank is None else rank]
