"""`sumpter bench emulate`: the whole run, from the check to the last cell."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from sumpter_lab.emulate import cell
from sumpter_lab.scaffold import spec
from sumpter_lab.scaffold.experiment import Progress, measured_cluster
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.network.cluster import Cluster
from sumpter_lab.scaffold.network.tournament import Links
from sumpter_lab.scaffold.optimum import optimum
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.spec import Spec


def run(asked: Spec, progress: Progress) -> Generator[dict[str, Any], None, None]:
    """Builds the cluster, measures its links and yields the row of each cell.

    The cluster is removed when the generator ends or is closed, and by SIGINT, SIGTERM or SIGHUP.
    """
    spec.check(asked)
    about = record.environment()
    # DDP imports it, which takes as long as torch itself, in each process anew.
    remote.preload(*(["torch._dynamo"] if any(load.name for load in asked.loads) else []))
    with measured_cluster(
        asked.gpu_rates_mbit,
        asked.cpu_rates_mbit,
        progress,
        lambda machines, links: estimate_s(asked, machines, links),
        idle_restart=asked.idle_restart,
        racks=asked.racks,
    ) as (machines, links):
        for load, workers, servers in asked.cells():
            here = machines.part(workers, servers)
            times = optimum(here.gpu, here.cpu, load.bytes, links)
            what = f"{workers} workers, {servers} servers"
            progress.stage(what, cell.duration_s(asked, load, times, servers))
            started = time.monotonic()
            row = cell.run_cell(asked, here, links, load, progress.advance)
            yield {**row, "cell_seconds": time.monotonic() - started, **about}


def estimate_s(asked: Spec, machines: Cluster, links: Links) -> float:
    """About how long all cells take."""
    total_s = 0.0
    for load, workers, servers in asked.cells():
        here = machines.part(workers, servers)
        times = optimum(here.gpu, here.cpu, load.bytes, links)
        total_s += cell.duration_s(asked, load, times, servers)
    return total_s
