"""Joins and leaves two hundred times; threads, descriptors and memory stay where they were."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE

CYCLES = 200
# After so many cycles everything that is made once has been made.
WARM = 20
# Heap fragmentation moves the resident size by some pages; a leaked thread or buffer of a session
# would add this much within a few cycles.
SLACK_BYTES = 8 << 20


def in_use() -> tuple[int, int, int]:
    """Threads, open descriptors and resident bytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
        pages * os.sysconf("SC_PAGE_SIZE"),
    )


warm = (0, 0, 0)
for cycle in range(CYCLES):
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (RANK, WORLD_SIZE)
    result = hvd.allreduce(torch.full((10_000,), float(RANK + cycle)), op=hvd.Sum, name="t")
    assert torch.equal(result, torch.full((10_000,), float(sum(ALL) + cycle * WORLD_SIZE)))
    hvd.shutdown()
    assert not hvd.is_initialized()
    if cycle == WARM:
        warm = in_use()
end = in_use()
assert end[0] <= warm[0], f"{warm[0]} threads grew to {end[0]}"
assert end[1] <= warm[1], f"{warm[1]} descriptors grew to {end[1]}"
assert end[2] - warm[2] < SLACK_BYTES, f"{warm[2]} resident bytes grew to {end[2]}"
print("fine")
