"""`sumpter bench emulate`: the whole run, from the check to the last cell."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Protocol

from sumpter_lab.emulate import cell, spec
from sumpter_lab.emulate.spec import Spec
from sumpter_lab.scaffold import cluster, record, remote, tournament
from sumpter_lab.scaffold.optimum import optimum
from sumpter_lab.scaffold.signals import orderly
from sumpter_lab.scaffold.tournament import Links


class Progress(Protocol):
    """Who hears of a run's progress; all durations are in seconds."""

    def estimate(self, total_s: float) -> None: ...
    def stage(self, what: str, expected_s: float) -> None: ...
    def advance(self, share: float) -> None: ...
    def links(self, links: Links) -> None: ...


def run(asked: Spec, progress: Progress) -> Generator[dict[str, Any], None, None]:
    """Builds the cluster, measures its links and yields the row of each cell.

    The cluster is removed when the generator ends or is closed, and by SIGINT, SIGTERM or SIGHUP.
    """
    spec.check(asked)
    about = record.environment()
    # DDP imports it, which takes as long as torch itself, in each process anew.
    remote.preload(*(["torch._dynamo"] if any(load.name for load in asked.loads) else []))
    rates = (asked.gpu_rates_mbit, asked.cpu_rates_mbit)
    with orderly(), cluster.emulated(*rates, idle_restart=asked.idle_restart) as machines:
        progress.estimate(estimate_s(asked, machines))
        everyone = machines.machines
        progress.stage("measuring the links", tournament.duration_s(len(everyone)))
        links = tournament.measure(everyone, progress.advance)
        progress.links(links)
        links.check(everyone)
        for load, workers, servers in asked.cells():
            times = optimum(machines.gpu[:workers], machines.cpu[:servers], load.bytes, links)
            what = f"{workers} workers, {servers} servers"
            progress.stage(what, cell.duration_s(asked, load, times, servers))
            counts = (workers, servers)
            started = time.monotonic()
            row = cell.run_cell(asked, machines, links, load, counts, progress.advance)
            yield {**row, "cell_seconds": time.monotonic() - started, **about}


def estimate_s(asked: Spec, machines: cluster.Cluster) -> float:
    """About how long the whole run takes, if the links carry what they are set to."""
    nominal = {machine.name: machine.rate_mbit for machine in machines.machines}
    links = Links(nominal, nominal, 0.0)
    total_s = tournament.duration_s(len(machines.machines))
    for load, workers, servers in asked.cells():
        times = optimum(machines.gpu[:workers], machines.cpu[:servers], load.bytes, links)
        total_s += cell.duration_s(asked, load, times, servers)
    return total_s
