"""The worker and the server of one cell, each in a process of its own on its machine.

A round has four calls, made by the driver of the cell: prepare() fills the tensors, run() takes
the time, check() compares the results. All ranks finish one call before the next one starts, so
the timed part starts everywhere at once and nothing else runs beside it.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

import sumpter.torch as bps
from sumpter import _native
from sumpter_lab.scaffold.jobs.ddp import GradientReplay
from sumpter_lab.scaffold.jobs.payload import Payload
from sumpter_lab.scaffold.jobs.updates import OPTIMIZERS, Updates
from sumpter_lab.scaffold.network.cluster import INTERFACE

# Collectives wait this long at most; a cell's own time limit is shorter.
TIMEOUT = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of a job find each other."""

    coordinator: str
    store_host: str
    store_port: int


class System(Protocol):
    """One way to sum, in rounds."""

    def prepare(self, number: int) -> None: ...
    def run(self) -> None: ...
    def check(self, number: int) -> None: ...


class Worker:
    """One rank of a job."""

    # The systems that need a process group of torch.
    torch_groups = frozenset({"gloo", "gloo_ddp", "sumpter_ddp"})

    def __init__(
        self,
        rank: int,
        world_size: int,
        address: str,
        settings: dict[str, str],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        torch.set_num_threads(1)
        self._rank, self._world_size = rank, world_size
        self._address = address
        # This rank's place among the workers of its machine, and their number.
        self._local = (0, 1)
        self._settings = {"machine": _native.machine_id(), **settings}
        self._shapes = shapes
        self._systems: dict[str, System] = {}
        self._coordinator: _native.Coordinator | None = None
        self._store: dist.Store | None = None

    def host(self) -> Meeting:
        """Starts the coordinator and torch's store; called on rank 0 only."""
        self._coordinator = _native.Coordinator(f"{self._address}:0", self._settings)
        self._store = dist.TCPStore(
            self._address, 0, self._world_size, True, TIMEOUT, wait_for_workers=False
        )
        return Meeting(self._coordinator.address, self._address, self._store.port)

    def join(self, meeting: Meeting, systems: Sequence[str]) -> None:
        """Joins the job and sets up the ways to sum that are asked for."""
        self._settings["coordinator"] = meeting.coordinator
        bps.init(
            **self._settings,
            rank=self._rank,
            world_size=self._world_size,
            local_rank=self._local[0],
            local_size=self._local[1],
        )
        if self.torch_groups & set(systems):
            self._join_torch(meeting)
        largest = max(map(_elements, self._shapes))
        compression = self._settings.get("compression")
        payload = Payload(self._rank, self._world_size, largest, compression)
        exact = Payload(self._rank, self._world_size, largest)
        tensors = [torch.zeros(shape) for shape in self._shapes]
        for system in systems:
            uses = exact if system.startswith("gloo") else payload
            self._systems[system] = self._make(system, uses, tensors)

    def prepare(self, system: str, number: int) -> None:
        """Makes this rank's contribution to a round."""
        self._systems[system].prepare(number)

    def run(self, system: str) -> tuple[float, float]:
        """Sums; seconds on the clock and of this process' cores."""
        run = self._systems[system].run
        cpu_s, start = time.process_time(), time.perf_counter()
        run()
        return time.perf_counter() - start, time.process_time() - cpu_s

    def check(self, system: str, number: int) -> None:
        """Raises unless this rank has the right result."""
        self._systems[system].check(number)

    def status(self) -> str:
        """The coordinator's view of the job, as JSON."""
        return _native.status(self._settings)

    def stats(self) -> str:
        """What this worker counts, as JSON."""
        from sumpter._core import membership

        return membership.current().worker.stats()

    def stop(self) -> None:
        """Leaves the job."""
        self._systems.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
        bps.shutdown()

    def stop_hosting(self) -> None:
        """Ends the coordinator; called on rank 0 once all have left."""
        if self._coordinator is not None:
            self._coordinator.stop()

    def _join_torch(self, meeting: Meeting) -> None:
        """Makes the default group on Sumpter, as a user would, and one on Gloo beside it."""
        if self._store is None:
            host, port = meeting.store_host, meeting.store_port
            self._store = dist.TCPStore(
                host, port, self._world_size, False, TIMEOUT, wait_for_workers=False
            )
        # Gloo would look up the host's name, which leads to no interface of a namespace.
        os.putenv("GLOO_SOCKET_IFNAME", INTERFACE)
        dist.init_process_group(
            "sumpter",
            store=self._store,
            rank=self._rank,
            world_size=self._world_size,
            timeout=TIMEOUT,
        )
        self._gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def _make(self, system: str, payload: Payload, tensors: list[torch.Tensor]) -> System:
        if system in OPTIMIZERS:
            return Updates(system, payload, tensors)
        if system not in self.torch_groups:
            return PushPull(payload, tensors)
        if system == "gloo":
            return GlooAllReduce(payload, tensors, self._gloo)
        group = self._gloo if system == "gloo_ddp" else None
        return GradientReplay(payload, self._shapes, group)


class PushPull:
    """All tensors in place by push_pull, submitted last one first like gradients."""

    def __init__(self, payload: Payload, tensors: list[torch.Tensor]) -> None:
        self._payload, self._tensors = payload, tensors

    def prepare(self, number: int) -> None:
        self._payload.fill(self._tensors, number)

    def run(self) -> None:
        count = len(self._tensors)
        handles = [
            bps.push_pull_async_inplace(
                # As DistributedOptimizer does: the next forward pass needs the first layers first.
                *(self._tensors[index], False, f"bench.{index}"),
                priority=count - index,
            )
            for index in reversed(range(count))
        ]
        for handle in handles:
            handle.synchronize()

    def check(self, number: int) -> None:
        self._payload.check(self._tensors, number)


class GlooAllReduce:
    """Each tensor by torch's all_reduce over Gloo."""

    def __init__(
        self, payload: Payload, tensors: list[torch.Tensor], group: dist.ProcessGroup
    ) -> None:
        self._payload, self._tensors, self._group = payload, tensors, group

    def prepare(self, number: int) -> None:
        self._payload.fill(self._tensors, number)

    def run(self) -> None:
        for tensor in self._tensors:
            dist.all_reduce(tensor, group=self._group)

    def check(self, number: int) -> None:
        self._payload.check(self._tensors, number)


class Server:
    """A summation server; serve() returns when its job has ended."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = {"machine": _native.machine_id(), **settings}
        # So that the server announces that it leaves.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

    def serve(self, coordinator: str) -> None:
        """Serves the job of the coordinator at this address."""
        _native.serve({**self._settings, "coordinator": coordinator})


def _elements(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()
