"""Rounds of compressed tensors, amid which servers are killed, if their pids are given.

Leaves the digests of all results, in the order of rounds and tensors.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import threading
from contextlib import ExitStack

import torch

import sumpter.torch as hvd
from common import RANK, leave_result

ROUNDS = 12
# When a server dies: right after a round was begun, or some milliseconds later.
DEATHS = {2: 0.0, 5: random.uniform(0, 0.004), 8: random.uniform(0, 0.02)}
# Many partitions of 32 KiB, or one; with two bytes an element they cut other blocks.
TENSORS = {
    "int8": (torch.float32, (150, 1001)),
    "onebit": (torch.float32, (150, 1001)),
    "onebit:momentum=0.9": (torch.bfloat16, (70, 1000)),
    "topk:k=0.02,momentum=0.9": (torch.float32, (150, 1001)),
    "dithering:bits=4,ef=true": (torch.float32, (150, 1001)),
    "randomk:k=0.1": (torch.float32, (30, 1000)),
}


class Trained:
    """A parameter whose gradients are summed by a codec."""

    def __init__(self, number: int, codec: str) -> None:
        dtype, shape = TENSORS[codec]
        self._number = number
        self._weight = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
        sgd = torch.optim.SGD([self._weight], 0.1)
        named = [(f"weight{number}", self._weight)]
        self._optimizer = hvd.DistributedOptimizer(sgd, named, compression=codec, op=hvd.Sum)

    def begin(self, round_: int) -> None:
        """Has this rank's gradient, which is on its way from now on."""
        generator = torch.Generator().manual_seed(10_000 * RANK + 100 * round_ + self._number)
        gradient = torch.randn(self._weight.shape, generator=generator).to(self._weight.dtype)
        self._optimizer.zero_grad()
        (self._weight * gradient).sum().backward()

    def end(self) -> bytes:
        """A digest of the sum."""
        self._optimizer.step()
        summed = self._weight.grad
        assert summed is not None and summed.isfinite().all()
        return hashlib.sha256(summed.view(torch.uint8).numpy().tobytes()).digest()


def kill_in(seconds: float, pid: int, at_end: ExitStack) -> None:
    print(f"kills {pid} after {1e3 * seconds:.3f} ms", flush=True)
    if seconds == 0.0:
        return os.kill(pid, signal.SIGKILL)
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    at_end.callback(timer.join)


hvd.init()
doomed = dict(zip(DEATHS, map(int, sys.argv[1:]), strict=False)) if RANK == 0 else {}
everything = [Trained(number, codec) for number, codec in enumerate(TENSORS)]
digests = []
for round_ in range(ROUNDS):
    with ExitStack() as at_end:
        for one in everything:
            one.begin(round_)
        if round_ in doomed:
            kill_in(DEATHS[round_], doomed[round_], at_end)
        digests += [one.end() for one in everything]
leave_result(b"".join(digests))
hvd.shutdown()
