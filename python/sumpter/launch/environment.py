"""What each process of a launched job finds in its environment.

The only module of the launcher that looks at the launcher's own environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """How many workers, servers and (pretended) GPU machines a job has."""

    workers: int
    servers: int
    machines: int

    def machine_of(self, rank: int) -> int:
        """The machine of a worker: ranks fill machines in order, sizes differ by at most one."""
        return rank * self.machines // self.workers

    def local_ranks(self, machine: int) -> list[int]:
        """The ranks on one machine, in order."""
        return [rank for rank in range(self.workers) if self.machine_of(rank) == machine]


@dataclass(frozen=True)
class Environment:
    """The environments of one job's processes."""

    shape: Shape
    coordinator: str
    token: str
    variables: Mapping[str, str]
    master_port: int

    def worker(self, rank: int) -> dict[str, str]:
        """What a worker needs, for Sumpter and for torch's `env://` rendezvous alike."""
        machine = self.shape.machine_of(rank)
        local = self.shape.local_ranks(machine)
        ranks = {
            "RANK": rank,
            "WORLD_SIZE": self.shape.workers,
            "LOCAL_RANK": local.index(rank),
            "LOCAL_WORLD_SIZE": len(local),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self.master_port,
            "SUMPTER_SERVERS": self.shape.servers,
            "SUMPTER_MACHINE": f"gpu-{machine}",
        }
        # As torchrun does: n processes with a thread pool of all cores each would fight.
        threads = {"OMP_NUM_THREADS": max(1, core_count() // self.shape.workers)}
        return self._merge(threads, ranks)

    def server(self, index: int) -> dict[str, str]:
        """What a server needs; each pretends a CPU machine of its own."""
        share = max(1, core_count() // self.shape.servers)
        identity = {"SUMPTER_SERVERS": self.shape.servers, "SUMPTER_MACHINE": f"cpu-{index}"}
        return self._merge({"SUMPTER_LANES": share}, identity)

    def _merge(self, defaults: Mapping[str, object], own: Mapping[str, object]) -> dict[str, str]:
        """Defaults give way to the user's environment, that to the options, those to the job."""
        common = {"SUMPTER_COORDINATOR": self.coordinator, "SUMPTER_TOKEN": self.token}
        buffered = {"PYTHONUNBUFFERED": "1"}
        merged = {
            **buffered,
            **_text(defaults),
            **os.environ,
            **self.variables,
            **common,
            **_text(own),
        }
        # A file would be a second source of the same token.
        merged.pop("SUMPTER_TOKEN_FILE", None)
        return merged


def bandwidth_gbps(settings: Mapping[str, str]) -> float | None:
    """The stated bandwidth of a machine's link, once the settings have been checked."""
    text = settings.get("bandwidth_gbps") or os.environ.get("SUMPTER_BANDWIDTH_GBPS")
    return float(text) if text else None


def core_count() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _text(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}
