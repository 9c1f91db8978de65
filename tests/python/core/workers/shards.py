"""Sharded all-reduces in host memory: each rank submits its shard of its device group's sum."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

import sumpter
from common import RANK, WORLD_SIZE, raises
from sumpter._core import membership
from sumpter._core.tensor import Tensor

# Held as a whole by one rank of each group, cut with a remainder, and cut into many partitions.
SIZES = (7, 30_001, 400_003)
HANG_S = 120
STEPS = int(sys.argv[1])
# The processes that are killed in the step in the middle.
SERVERS = [int(pid) for pid in sys.argv[2:]]


def values(size: int, rank: int, step: int) -> np.ndarray:
    return (np.arange(size, dtype=np.float32) + step) % 97 + 1000 * rank


class Sharded:
    """A tensor of which this rank holds a shard, as it would after a reduce-scatter."""

    def __init__(
        self, name: str, size: int, average: bool = False, ranks: list[int] | None = None
    ) -> None:
        session = membership.current()
        self.size, self.ranks = size, ranks or list(range(WORLD_SIZE))
        self.divisor = len(self.ranks) if average else 1
        self.tensor: Tensor = session.declare(
            name, "all_reduce", (size,), "float32", average=average, ranks=ranks, sharded=True
        )
        shards = self.tensor.shards
        assert shards is not None
        self.group = [rank for rank, _, _ in shards]
        assert sum(bytes_ for _, _, bytes_ in shards) == size * 4
        (self.own,) = (slice(at // 4, (at + n) // 4) for rank, at, n in shards if rank == RANK)
        assert self.tensor.shard == (self.own.start * 4, (self.own.stop - self.own.start) * 4)

    def check(self, step: int, staged: bool) -> None:
        """One round: only the shard is in memory, and the result is that of a plain sum."""
        group = sum(values(self.size, rank, step) for rank in self.group)
        memory = np.ascontiguousarray(group[self.own])
        send = memory.ctypes.data if memory.size else 0
        out = np.zeros_like(memory)
        receive = out.ctypes.data if memory.size else 0
        if staged:
            done: list[int] = []
            handle, supply = self.tensor.submit_staged(
                send, receive, keep=(memory, out), slice_bytes=4096, on_slice=done.append
            )
            half = memory.nbytes // 8 * 4
            supply.supply(half, memory.nbytes - half)
            supply.supply(0, half)
            told = threading.Event()
            handle.on_done(told.set)
            handle.wait()
            # Slices are announced by another thread, and all before the end.
            assert told.wait(HANG_S)
            assert sorted(done) == list(range(-(-memory.nbytes // 4096))), (done, memory.nbytes)
        else:
            self.tensor.submit(send, receive, keep=(memory, out)).wait()
        total = sum(values(self.size, rank, step) for rank in self.ranks) / self.divisor
        np.testing.assert_array_equal(out, total.astype(np.float32)[self.own])


sumpter.init()
session = membership.current()
tensors = [Sharded(f"sum {size}", size) for size in SIZES]
tensors += [Sharded(f"mean {size}", size, average=True) for size in SIZES]
some = [0, 2, 3, WORLD_SIZE - 1]
if RANK in some:
    tensors += [Sharded("some", 100_000, ranks=some)]
for step in range(STEPS):
    if RANK == 0 and step == STEPS // 2:
        for pid in SERVERS:
            os.kill(pid, signal.SIGKILL)
    for index, tensor in enumerate(tensors):
        tensor.check(step, staged=(step + index) % 2 == 1)
    # Beside them, a plain one of all ranks.
    mine = values(5000, RANK, step)
    expected = sum(values(5000, rank, step) for rank in range(WORLD_SIZE))
    np.testing.assert_array_equal(sumpter.push_pull(mine, name="plain", average=False), expected)
# A rank with the tensor elsewhere, and collectives that have no shards.
odd = session.declare("odd", "all_reduce", (10_000,), "float32", sharded=RANK != 1)
memory = np.zeros(10_000, np.float32)
with raises(sumpter.MismatchError, "odd", "device groups", "rank 1"):
    # The rounds of a rank that holds nothing are done at once, until it is told.
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        odd.submit(memory.ctypes.data, memory.ctypes.data, keep=memory).wait()
reduce = session.declare("reduce", "reduce", (4,), "float32", sharded=True)
with raises(sumpter.MismatchError, "only an all_reduce"):
    reduce.submit(memory.ctypes.data, memory.ctypes.data, keep=memory).wait()
sumpter.shutdown()
