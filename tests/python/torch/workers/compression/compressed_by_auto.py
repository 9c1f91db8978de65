"""`compression=auto`: large floats travel by the codec that the plan chooses, or as they are."""

from __future__ import annotations

import os
import signal
import sys

import torch

import sumpter.torch as hvd
from common import ALL, RANK

# What is expected of large tensors, and the process of a server that dies in the middle.
encoded, server = sys.argv[1] == "encoded", sys.argv[2:]
ROUNDS = 6


def given(rank: int, count: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(count, generator=generator)


hvd.init()
left = torch.zeros(50_000)
for step in range(ROUNDS):
    if server and RANK == 0 and step == ROUNDS // 2:
        os.kill(int(server[0]), signal.SIGKILL)
    for count in (50_000, 100):
        result = hvd.allreduce(given(RANK, count, step), op=hvd.Sum, name=f"of {count}")
        error = result - sum(given(rank, count, step) for rank in ALL)
        largest = float(error.abs().max())
        assert (largest > 1e-5) == (encoded and count > 100), (step, count, largest)
        if count > 100:
            left += error
# What a round leaves out goes with the next.
assert float(left.abs().max()) < 0.2, left.abs().max()
hvd.shutdown()
