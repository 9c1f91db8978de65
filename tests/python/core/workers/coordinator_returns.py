"""The coordinator dies and returns: rounds go on without one, new tensors wait for the next."""

from __future__ import annotations

import torch

import sumpter.torch as hvd
from common import FOLDER, RANK, WORLD_SIZE, announce, same

hvd.init()


def exchange(step: int, name: str = "gradient") -> None:
    given = torch.full((300_000,), float(RANK + step))
    expected = torch.full((300_000,), float(sum(range(WORLD_SIZE)) + WORLD_SIZE * step))
    same(hvd.allreduce(given, op=hvd.Sum, name=name), expected)


def everyone_sees(mark: str) -> bool:
    seen = torch.tensor([float((FOLDER / mark).exists())])
    return hvd.allreduce(seen, op=hvd.Min, name="mark").item() == 1


step = 0
for turn in range(2):
    if RANK == 0:
        announce(f"at_work{turn}")
    while not everyone_sees(f"away{turn}"):
        exchange(step := step + 1)
    for _ in range(20):
        exchange(step := step + 1)
    if RANK == 0:
        announce(f"worked_on{turn}")
    # Only a coordinator can number this.
    exchange(step, name=f"after{turn}")
    exchange(step)
hvd.shutdown()
