"""One job on the emulated cluster: its servers and workers, and one round at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sumpter import _native
from sumpter._failure import Failure
from sumpter_lab.scaffold.jobs.remote import LEAVE_TIMEOUT_S, Remote, call_all, end_all, gather
from sumpter_lab.scaffold.network import counters, mesh
from sumpter_lab.scaffold.network.cluster import Cluster, Machine, Trunk
from sumpter_lab.scaffold.network.tournament import START_TIMEOUT_S


@dataclass(frozen=True)
class Round:
    """What one round of one system took."""

    seconds: float  # of the slowest rank
    worker_cpu_s: float
    server_cpu_s: float
    links: dict[str, counters.LinkCounts]  # by machine
    cores: counters.CoreTicks
    trunks: dict[str, counters.LinkCounts] = field(default_factory=dict)  # by rack


@dataclass(frozen=True)
class LaneMemory:
    """Bytes that the lanes of each server and of each worker hold."""

    servers: list[int]
    workers: list[int]

    @property
    def total(self) -> int:
        return sum(self.servers) + sum(self.workers)


class EmulatedJob:
    """The processes of one job."""

    def __init__(
        self, workers: Sequence[Remote], servers: list[Remote], trunks: Sequence[Trunk] = ()
    ) -> None:
        self.workers = workers
        self.servers = servers
        self._trunks = trunks

    def round(
        self,
        system: str,
        number: int,
        timeout_s: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Round:
        """Runs one checked round; raises when a result is wrong or a process fails.

        `meanwhile` is called once it runs.
        """

        def timed() -> list[Any]:
            for worker in self.workers:
                worker.send("run", system)
            meanwhile()
            return gather(self.workers, timeout_s)

        call_all(self.workers, timeout_s, "prepare", system, number)
        server_cpu_s = self._server_cpu_s()
        run = _counted([*self.workers, *self.servers], timed, self._trunks)
        server_cpu_s = self._server_cpu_s() - server_cpu_s
        call_all(self.workers, timeout_s, "check", system, number)
        return Round(
            seconds=max(seconds for seconds, _ in run.figures),
            worker_cpu_s=sum(cpu_s for _, cpu_s in run.figures),
            server_cpu_s=server_cpu_s,
            links=run.links,
            cores=run.cores,
            trunks=run.trunks,
        )

    def kill_server(self, index: int) -> None:
        """Kills a server; the job goes on without it."""
        self.servers.pop(index).end()

    def lane_memory_bytes(self) -> LaneMemory:
        """What each member's lanes hold, as the coordinator knows it."""
        (text,) = call_all(self.workers[:1], START_TIMEOUT_S, "status")
        status = json.loads(text)

        def of(role: str) -> list[int]:
            return [int(_counter(one, "lane_memory_bytes")) for one in status.get(role) or []]

        return LaneMemory(of("servers"), of("workers"))

    def _server_cpu_s(self) -> float:
        return sum(counters.process_cpu_s(server.pid) for server in self.servers)


class PlainTransfer:
    """The processes that move a round's bytes without summing them: see `mesh`."""

    def __init__(
        self,
        meshes: Sequence[Remote],
        volumes: Sequence[dict[int, int]],
        trunks: Sequence[Trunk] = (),
    ) -> None:
        self._meshes = meshes
        self._volumes = volumes
        self._trunks = trunks

    def round(self, system: str, number: int, timeout_s: float) -> Round:
        """Moves the bytes once."""

        def run() -> list[Any]:
            for remote, volumes in zip(self._meshes, self._volumes, strict=True):
                remote.send("run", volumes)
            return gather(self._meshes, timeout_s)

        ran = _counted(self._meshes, run, self._trunks)
        return Round(
            seconds=max(seconds for seconds, _ in ran.figures),
            worker_cpu_s=sum(cpu_s for _, cpu_s in ran.figures),
            server_cpu_s=0.0,
            links=ran.links,
            cores=ran.cores,
            trunks=ran.trunks,
        )


@dataclass(frozen=True)
class _Run:
    figures: list[Any]
    links: dict[str, counters.LinkCounts]
    cores: counters.CoreTicks
    trunks: dict[str, counters.LinkCounts]


def _counted(
    everyone: Sequence[Remote], run: Callable[[], list[Any]], trunks: Sequence[Trunk]
) -> _Run:
    """What a run answers, and what links, trunks and cores did meanwhile."""
    before = {remote.name: counters.link_counts(remote.pid) for remote in everyone}
    crossed = counters.trunk_counts(trunks)
    cores = counters.core_ticks()
    figures = run()
    cores = counters.core_ticks() - cores
    links = {
        remote.machine.name: counters.link_counts(remote.pid) - before[remote.name]
        for remote in everyone
    }
    after = counters.trunk_counts(trunks)
    return _Run(figures, links, cores, {rack: after[rack] - crossed[rack] for rack in after})


@contextlib.contextmanager
def plain_transfer(
    cluster: Cluster, shares: dict[str, float], size_bytes: int
) -> Iterator[PlainTransfer]:
    """Connects all machines that exchange anything when each sums its share."""
    machines = cluster.machines
    volumes = mesh.volumes([shares[m.name] for m in machines], len(cluster.gpu), size_bytes)
    meshes = [Remote(m, "Mesh", index, m.address) for index, m in enumerate(machines)]
    try:
        ports = call_all(meshes, START_TIMEOUT_S, "port")
        for index, (own, moved) in enumerate(zip(meshes, volumes, strict=True)):
            later = {to: (machines[to].address, ports[to]) for to in moved if to > index}
            own.send("join", later, len(moved) - len(later))
        gather(meshes, START_TIMEOUT_S)
        yield PlainTransfer(meshes, volumes, cluster.trunks)
    finally:
        end_all(meshes, timeout_s=1.0)


@contextlib.contextmanager
def emulated_job(
    gpu: Sequence[Machine],
    cpu: Sequence[Machine],
    settings: dict[str, str],
    bandwidths_gbps: dict[str, float],
    load: object,
    systems: Sequence[str],
    kind: str = "Worker",
    own_settings: Mapping[str, dict[str, str]] | None = None,
    trunks: Sequence[Trunk] = (),
) -> Iterator[EmulatedJob]:
    """Starts a job with a worker on each GPU machine and a server on each CPU machine.

    `kind` names the class of the workers and `load` describes what it sums. `own_settings` are
    those of one machine, by its name. What crosses `trunks` is counted in each round.
    """
    shared = {"log": "warn", **settings}
    shared |= {"token": _native.generate_token(), "servers": str(len(cpu))}
    shared["start_timeout_s"] = f"{START_TIMEOUT_S:g}"
    more = own_settings or {}
    workers: list[Remote] = []
    servers: list[Remote] = []
    try:
        for rank, machine in enumerate(gpu):
            own = shared | _bandwidth(machine, bandwidths_gbps) | more.get(machine.name, {})
            workers.append(Remote(machine, kind, rank, len(gpu), machine.address, own, load))
        (meeting,) = call_all(workers[:1], START_TIMEOUT_S, "host")
        for machine in cpu:
            own = shared | _bandwidth(machine, bandwidths_gbps) | more.get(machine.name, {})
            servers.append(Remote(machine, "Server", own))
            servers[-1].send("serve", meeting.coordinator)
        call_all(workers, 2 * START_TIMEOUT_S, "join", meeting, list(systems))
        yield EmulatedJob(workers, servers, trunks)
        call_all(workers, START_TIMEOUT_S, "stop")
        # A server's call returns when its job has ended, or raises what went wrong.
        gather(servers, LEAVE_TIMEOUT_S)
        call_all(workers[:1], START_TIMEOUT_S, "stop_hosting")
    except Failure as failure:
        # A server's own words say more than those of a worker that misses it.
        causes = [complaint for server in servers if (complaint := server.complaint())]
        end_all(workers + servers, timeout_s=0.0)
        raise Failure("; ".join([str(failure), *causes])) from None
    except BaseException:
        end_all(workers + servers, timeout_s=0.0)
        raise
    end_all(workers + servers)


def rack_settings(
    machines: Sequence[Machine], trunks_gbps: Mapping[str, float]
) -> dict[str, dict[str, str]]:
    """By machine, its rack and what the rack's trunk carries."""
    own = {}
    for machine in machines:
        if machine.rack is not None:
            trunk = f"{trunks_gbps[machine.rack]:.6g}"
            own[machine.name] = {"rack": machine.rack, "trunk_gbps": trunk}
    return own


def _bandwidth(machine: Machine, bandwidths_gbps: dict[str, float]) -> dict[str, str]:
    """The link settings of a machine; none where all links are equal."""
    known = bandwidths_gbps.get(machine.name)
    return {} if known is None else {"bandwidth_gbps": f"{known:.6g}"}


def _counter(member: dict[str, Any], name: str) -> float:
    return float(((member.get("stats") or {}).get("counters") or {}).get(name, 0))
