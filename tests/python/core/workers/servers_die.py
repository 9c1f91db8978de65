"""Both servers get a signal, one after the other, amid rounds: every result stays exact."""

from __future__ import annotations

import os
import signal
import sys

import torch

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, same

STEPS = 60
SIZES = (300_000, 17, 70_000, 1_000_000)
# What ends a server, and which of them when.
SIGNAL = signal.Signals[sys.argv[1]]
ENDS = {15: int(sys.argv[2]), 35: int(sys.argv[3])}


def step_once(step: int) -> None:
    gradients = [torch.full((size,), float(RANK + step)) for size in SIZES]
    handles = [hvd.allreduce_async_(g, op=hvd.Sum, name=f"g{i}") for i, g in enumerate(gradients)]
    root = step % WORLD_SIZE
    told = torch.full((50_000,), float(RANK))
    handles.append(hvd.broadcast_async_(told, root, name=f"told by {root}"))
    if RANK == 0 and step in ENDS:
        os.kill(ENDS[step], SIGNAL)
    for handle in handles:
        hvd.synchronize(handle)
    total = float(sum(rank + step for rank in range(WORLD_SIZE)))
    for size, gradient in zip(SIZES, gradients, strict=True):
        same(gradient, torch.full((size,), total))
    same(told, torch.full((50_000,), float(root)))


hvd.init()
for step in range(STEPS):
    step_once(step)
hvd.shutdown()
