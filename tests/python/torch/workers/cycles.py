"""Joins and leaves two hundred times; threads, descriptors and memory stay where they were."""

from __future__ import annotations

import gc
import os
import time
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


# The kernel lists a thread for a moment after it was joined.
ENDED_S = 10.0


def threads_down_to(most: int) -> int:
    """Threads of this process, once there are at most so many or none can be ending any more."""
    deadline = time.monotonic() + ENDED_S
    while (count := len(os.listdir("/proc/self/task"))) > most and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


def in_use(most_threads: int) -> tuple[int, int, int]:
    """Threads, open descriptors and resident bytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (
        threads_down_to(most_threads),
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
        warm = in_use(1)
end = in_use(warm[0])
assert end[0] <= warm[0], f"{warm[0]} threads grew to {end[0]}"
assert end[1] <= warm[1], f"{warm[1]} descriptors grew to {end[1]}"
assert end[2] - warm[2] < SLACK_BYTES, f"{warm[2]} resident bytes grew to {end[2]}"
print("fine")
