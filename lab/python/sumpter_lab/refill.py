"""What does filling the lanes cost after a server has died with optimizer state?

    sudo sumpter bench refill

Lanes keep nothing from one epoch to the next. When a server dies, the mirrors give value and state
of every variable to the servers that are left. For sums, which have no state, and for each rule:
one server of an emulated cluster is killed, a round begins at once, and its time and bytes are set
beside those of the next round, which nothing disturbs. The bytes are also set beside the planner's:
value and state of all parameters, but for what a worker keeps for its own lane. A turn has a job of
its own for each system; results are checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sumpter import _native
from sumpter_lab.scaffold import units
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.emulated import EmulatedJob, emulated_job
from sumpter_lab.scaffold.jobs.remote import call_all, gather
from sumpter_lab.scaffold.network import cluster, counters, namespaces
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.output import check_writable
from sumpter_lab.scaffold.results.table import Column, Row, figure, head_line, row_line
from sumpter_lab.scaffold.signals import orderly
from sumpter_lab.scaffold.spec import RULES

PATIENCE_S = 300.0
SUMS = "sumpter"
TENSOR_BYTES = 4 << 20
WARMUP = 2

COLUMNS = (
    Column("n", 3, figure("workers", "{}")),
    Column("k", 3, figure("servers", "{}")),
    Column("system", 13, figure("system", "{}")),
    Column("round s", 8, figure("round_s", "{:.3f}")),
    Column("more s", 8, figure("more_s", "{:.3f}")),
    Column("range", 15, lambda row: "{:.3f}-{:.3f}".format(*row["more_s_range"])),
    Column("more MB", 8, figure("more_megabytes", "{:.2f}")),
    Column("planned MB", 10, figure("planned_megabytes", "{:.2f}")),
    Column("planned s", 9, figure("planned_s", "{:.3f}")),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every number of machines and prints a row for each system."""
    parser = argparse.ArgumentParser(
        "sumpter bench refill", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-n", "--workers", default="4,8", help="numbers of GPU machines")
    parser.add_argument(
        "-s", "--servers", default="n", help="numbers of CPU machines; n is as many as workers"
    )
    parser.add_argument("--megabytes", type=float, default=16.0, help="of parameters, in float32")
    parser.add_argument("--rules", default="sgd_momentum,adam", help="update rules, with commas")
    parser.add_argument("--rate-mbit", type=float, default=200.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, help="also write every turn, as JSON")
    asked = parser.parse_args(arguments)
    rules = units.parse_names(asked.rules, "--rules", RULES)
    # At least one server is there to be killed.
    cells = units.parse_cells(asked.workers, asked.servers, 1)
    check_writable(asked.output, "--output")
    namespaces.check_tools()
    remote.preload()
    about = record.environment()
    rates = [[asked.rate_mbit] * max(counts) for counts in zip(*cells, strict=True)]
    found: list[Row] = []
    with orderly(), cluster.emulated(*rates) as machines:
        print(head_line(COLUMNS))
        for n, k in cells:
            gpu, cpu = machines.gpu[:n], machines.cpu[:k]
            turns: dict[str, list[dict[str, Any]]] = {name: [] for name in (SUMS, *rules)}
            for _ in range(asked.turns):
                for system, of_system in turns.items():
                    of_system.append(_turn(gpu, cpu, system, asked))
            for system, of_system in turns.items():
                found.append(row_of(n, k, system, of_system, asked))
                print(row_line(COLUMNS, found[-1]), flush=True)
    if asked.output:
        document = {"about": about, "asked": vars(asked) | {"output": None}, "rows": found}
        asked.output.write_text(json.dumps(document, indent=1) + "\n")


def _turn(
    gpu: Sequence[cluster.Machine],
    cpu: Sequence[cluster.Machine],
    system: str,
    asked: argparse.Namespace,
) -> dict[str, Any]:
    """A job in which a server dies: the round that follows, and the one after that."""
    whole, elements = TENSOR_BYTES // 4, round(asked.megabytes * 1e6 / 4)
    shapes = [(whole,)] * (elements // whole) + [(elements % whole,)] * bool(elements % whole)
    bandwidths = {machine.name: asked.rate_mbit / 1000 for machine in (*gpu, *cpu)}
    with emulated_job(gpu, cpu, {"lanes": "1"}, bandwidths, shapes, [system]) as job:
        for number in range(WARMUP):
            job.round(system, number, PATIENCE_S)
        return {
            "killed": _round(job, system, WARMUP, kills=True),
            "next": _round(job, system, WARMUP + 1, kills=False),
        }


def _round(job: EmulatedJob, system: str, number: int, *, kills: bool) -> dict[str, float]:
    """A checked round: seconds, and bytes that all links but the dead server's have sent."""
    call_all(job.workers, PATIENCE_S, "prepare", system, number)
    counted = [*job.workers, *job.servers[int(kills) :]]
    before = [counters.link_counts(one.pid) for one in counted]
    begun = time.perf_counter()
    if kills:
        job.kill_server(0)
    for worker in job.workers:
        worker.send("run", system)
    gather(job.workers, PATIENCE_S)
    seconds = time.perf_counter() - begun
    after = [counters.link_counts(one.pid) for one in counted]
    call_all(job.workers, PATIENCE_S, "check", system, number)
    sent = sum(b.sent_bytes - a.sent_bytes for a, b in zip(before, after, strict=True))
    return {"seconds": seconds, "sent_bytes": sent}


def row_of(
    n: int, k: int, system: str, turns: Sequence[dict[str, Any]], asked: argparse.Namespace
) -> Row:
    """What the round after the death took more than the next one, by turn, and the medians."""
    more_s = sorted(t["killed"]["seconds"] - t["next"]["seconds"] for t in turns)
    more_bytes = [t["killed"]["sent_bytes"] - t["next"]["sent_bytes"] for t in turns]
    total, busiest = planned_bytes(n, k - 1, system, round(asked.megabytes * 1e6))
    return {
        "workers": n,
        "servers": k,
        "system": system,
        "round_s": statistics.median(t["next"]["seconds"] for t in turns),
        "more_s": statistics.median(more_s),
        "more_s_range": [more_s[0], more_s[-1]],
        "more_megabytes": statistics.median(more_bytes) / 1e6,
        "planned_megabytes": total / 1e6,
        "planned_s": busiest * 8e-6 / asked.rate_mbit,
        "turns": list(turns),
    }


def planned_bytes(n: int, k: int, system: str, model_bytes: int) -> tuple[float, float]:
    """What all mirrors send to fill the lanes of n workers and k servers, and the most that one
    direction of a link carries of it."""
    if system == SUMS:
        return 0.0, 0.0
    request = {"workers": n, "servers": k, "bytes": model_bytes, "rule": system}
    report = json.loads(_native.plan(json.dumps(request)))
    mirrored, share = report["optimizer"]["mirror_bytes"], report["share_gpu"]
    # Of what a worker mirrors, the lane beside it has that lane's share.
    sent = mirrored * (1 - share)
    received = mirrored * (n - 1) * share
    by_server = mirrored * n * report["share_cpu"] if k else 0.0
    return n * sent, max(sent, received, by_server)
