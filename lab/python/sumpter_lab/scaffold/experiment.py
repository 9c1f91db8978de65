"""What every experiment on an emulated cluster does first: builds it and measures its links."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from sumpter_lab.scaffold.network import cluster, tournament
from sumpter_lab.scaffold.network.cluster import Cluster, Racks
from sumpter_lab.scaffold.network.tournament import Links
from sumpter_lab.scaffold.signals import orderly

# A round that takes this many times as long as the slowest way should has hung.
PATIENCE = 30
LEAST_TIMEOUT_S = 60.0
# How long processes on one machine take to start, join and end, for the estimate of the duration.
START_S = 3.0


class Progress(Protocol):
    """What shows a run's progress; all durations are in seconds."""

    def estimate(self, total_s: float) -> None: ...
    def stage(self, what: str, expected_s: float) -> None: ...
    def advance(self, share: float) -> None: ...
    def links(self, links: Links) -> None: ...


def timeout_s(slowest_s: float) -> float:
    """When a call has hung that takes `slowest_s` at worst."""
    return max(LEAST_TIMEOUT_S, PATIENCE * slowest_s)


@contextlib.contextmanager
def measured_cluster(
    gpu_rates_mbit: list[float],
    cpu_rates_mbit: list[float],
    progress: Progress,
    estimate_s: Callable[[Cluster, Links], float],
    *,
    idle_restart: bool = True,
    racks: Racks | None = None,
) -> Iterator[tuple[Cluster, Links]]:
    """A cluster with what its links carry.

    `estimate_s` says how long the experiment takes after that if links carry what they are set to.
    The cluster is removed when the block is left, also by SIGINT, SIGTERM or SIGHUP.
    """
    with (
        orderly(),
        cluster.emulated(
            gpu_rates_mbit, cpu_rates_mbit, idle_restart=idle_restart, racks=racks
        ) as machines,
    ):
        everyone = machines.machines
        nominal = {machine.name: machine.rate_mbit for machine in everyone}
        trunks = {trunk.rack: trunk.rate_mbit for trunk in machines.trunks}
        measuring_s = tournament.duration_s(everyone)
        progress.estimate(measuring_s + estimate_s(machines, Links(nominal, nominal, 0.0, trunks)))
        progress.stage("measuring the links", measuring_s)
        links = tournament.measure(everyone, progress.advance, machines.trunks)
        progress.links(links)
        links.check(everyone, machines.trunks)
        yield machines, links
