"""One job: a process with all its workers, each with connections of its own to the server.

The workers do nothing but sum. So that it can stop at any time, a tensor is submitted for all
workers at once, and again when all have its result.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sumpter import _native

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """What a job asks of the server."""

    workers: int
    tensor_bytes: int
    in_flight: int  # tensors, each in a round of its own

    @property
    def memory_bytes(self) -> int:
        """What its process holds: contributions, and results of all tensors."""
        return self.workers * self.tensor_bytes * (1 + self.in_flight)


@dataclass(frozen=True)
class Sample:
    """What a job has done so far."""

    at_s: float  # on the machine's monotonic clock
    moved_bytes: int  # by all workers, the mean of both directions
    rounds: int


class Job:
    """The workers of one job."""

    def __init__(self, settings: dict[str, str], shape: Shape) -> None:
        self._settings, self._shape = settings, shape
        self._workers: list[_native.Worker] = []
        self._running = threading.Event()
        self._slots: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._rounds = [0] * shape.in_flight
        elements = shape.tensor_bytes // _FLOAT32_BYTES
        self._contributions = [
            np.full(elements, rank + 1, np.float32) for rank in range(shape.workers)
        ]
        self._results = np.zeros((shape.in_flight, shape.workers, elements), np.float32)

    def join(self) -> None:
        """Joins with all workers; returns once the job has started."""
        joined: dict[int, _native.Worker] = {}

        def join(rank: int) -> None:
            joined[rank] = _native.Worker.join(self._settings_of(rank))

        _in_threads([lambda rank=rank: join(rank) for rank in range(self._shape.workers)])
        self._workers = [joined[rank] for rank in range(self._shape.workers)]
        shape = self._contributions[0].shape
        self._tensors = [
            [
                worker.declare(f"tensor.{slot}", "all_reduce", shape, "float32")
                for slot in range(self._shape.in_flight)
            ]
            for worker in self._workers
        ]

    def start(self) -> None:
        """Begins to sum, without end."""
        self._running.set()
        self._slots = [
            threading.Thread(target=self._sum, args=(slot,), daemon=True)
            for slot in range(self._shape.in_flight)
        ]
        for thread in self._slots:
            thread.start()

    def stop(self) -> None:
        """Ends what is under way; raises if anything failed, or if a sum is wrong."""
        self._running.clear()
        for thread in self._slots:
            thread.join()
        self._raise_failure()
        expected = sum(range(1, self._shape.workers + 1))
        if not (self._results == expected).all():
            raise AssertionError("a sum is wrong")

    def sample(self) -> Sample:
        """What has been done so far."""
        self._raise_failure()
        moved = 0
        for worker in self._workers:
            counters = json.loads(worker.stats())["counters"]
            moved += int(counters["bytes_sent"] + counters["bytes_received"])
        return Sample(time.monotonic(), moved // 2, sum(self._rounds))

    def close(self) -> None:
        """Leaves."""
        # Together, since each waits for what the others still need of it.
        _in_threads([worker.shutdown for worker in self._workers])

    def _settings_of(self, rank: int) -> dict[str, str]:
        job = self._settings["job"]
        return {
            **self._settings,
            "rank": str(rank),
            "world_size": str(self._shape.workers),
            "local_rank": "0",
            "local_size": "1",
            # Each on a machine of its own, so that all speak TCP and none sums for another.
            "machine": f"{job}-{rank}",
        }

    def _sum(self, slot: int) -> None:
        try:
            while self._running.is_set():
                for handle in [self._submit(slot, rank) for rank in range(self._shape.workers)]:
                    handle.wait()
                self._rounds[slot] += 1
        except Exception as error:
            self._failures.append(error)

    def _submit(self, slot: int, rank: int) -> _native.Handle:
        send, receive = self._contributions[rank], self._results[slot, rank]
        addresses = send.ctypes.data, receive.ctypes.data
        return self._tensors[rank][slot].submit(*addresses, 0, "", (send, receive))

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]


def _in_threads(calls: list[Callable[[], object]]) -> None:
    """Makes all calls at once; raises what the first of them that failed did."""
    failures: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
