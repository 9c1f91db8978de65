"""What does asynchronous training save where one worker is slower than the others?

    sudo sumpter bench asynchronous

Emulates n GPU machines and k CPU machines, of which the last worker computes `--factor` times as
long as the others, and trains synchronously, with bounds on staleness and without one, interleaved.
Computing is waiting here, so that the cores are free for what is measured: how many steps the fast
workers and the slow one take a second, and what the links carry for them. Sums are checked: when
all have stopped, the shared parameters have every step of every worker once.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sumpter import _native
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.remote import Remote, call_all, end_all
from sumpter_lab.scaffold.network import cluster, counters, namespaces
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.output import check_writable
from sumpter_lab.scaffold.signals import orderly

PATIENCE_S = 300.0
# 0 is synchronous, None has no bound.
MODES: dict[str, int | None] = {
    "synchronous": 0,
    "staleness 1": 1,
    "staleness 4": 4,
    "no bound": None,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every mode, interleaved, and prints a row for each."""
    parser = argparse.ArgumentParser(
        "sumpter bench asynchronous", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-n", "--workers", type=int, default=4)
    parser.add_argument("-k", "--servers", type=int, default=4)
    parser.add_argument("--rate-mbit", type=float, default=200.0)
    parser.add_argument("--megabytes", type=float, default=1.0, help="of parameters, in float32")
    parser.add_argument("--compute-s", type=float, default=0.1, help="of a step of the others")
    parser.add_argument("--factor", type=float, default=4.0, help="of the slow worker")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, help="also write every turn, as JSON")
    asked = parser.parse_args(arguments)
    check_writable(asked.output, "--output")
    namespaces.check_tools()
    remote.preload("sumpter_lab.asynchronous_rank")
    about = record.environment()
    rates = [asked.rate_mbit]
    with orderly(), cluster.emulated(rates * asked.workers, rates * asked.servers) as machines:
        turns = measure(machines, asked)
    print_rows(turns, asked.workers)
    if asked.output:
        document = {"about": about, "asked": vars(asked) | {"output": None}, "turns": turns}
        asked.output.write_text(json.dumps(document, indent=1) + "\n")


def measure(machines: cluster.Cluster, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Every mode once a turn, after one to warm up."""
    shared = {
        "log": "warn",
        "token": _native.generate_token(),
        "servers": str(asked.servers),
        "bandwidth_gbps": f"{asked.rate_mbit / 1000}",
    }
    elements = int(asked.megabytes * 1e6 / 4)
    workers = [
        Remote(*(machine, "Stepper", rank, asked.workers, machine.address, shared, [(elements,)]))
        for rank, machine in enumerate(machines.gpu)
    ]
    servers = [Remote(machine, "Server", shared) for machine in machines.cpu]
    turns = []
    try:
        (meeting,) = call_all(workers[:1], PATIENCE_S, "host")
        for server in servers:
            server.send("serve", meeting.coordinator)
        call_all(workers, PATIENCE_S, "join", meeting, [])
        for turn in range(asked.turns + 1):
            for mode, staleness in MODES.items():
                call_all(workers, PATIENCE_S, "share", staleness)
                before = [counters.link_counts(worker.pid) for worker in workers]
                for rank, worker in enumerate(workers):
                    slow = rank == asked.workers - 1
                    compute_s = asked.compute_s * (asked.factor if slow else 1.0)
                    worker.send("train", compute_s, asked.seconds, staleness == 0)
                found = remote.gather(workers, PATIENCE_S)
                links = [
                    counters.link_counts(worker.pid) - earlier
                    for worker, earlier in zip(workers, before, strict=True)
                ]
                call_all(workers, PATIENCE_S, "check", mode, turn)
                if turn:
                    turns.append(
                        {"mode": mode, "turn": turn, "ranks": found}
                        | {"links": [asdict(link) for link in links]}
                    )
        call_all(workers, PATIENCE_S, "stop")
        call_all(workers[:1], PATIENCE_S, "stop_hosting")
    finally:
        end_all([*workers, *servers], timeout_s=5.0)
    return turns


def print_rows(turns: Sequence[dict[str, Any]], workers: int) -> None:
    """Medians over the turns of what each mode did, and their range."""
    print("mode           steps/s of the others      of the slow one   MB in a step of all links")
    for mode in MODES:
        of_mode = [turn for turn in turns if turn["mode"] == mode]
        rates = [[rank["steps"] / rank["seconds"] for rank in turn["ranks"]] for turn in of_mode]
        fast = sorted(statistics.mean(turn[:-1]) for turn in rates)
        slow = sorted(turn[-1] for turn in rates)
        received = [
            sum(link["received_bytes"] for link in turn["links"])
            / sum(rank["steps"] for rank in turn["ranks"])
            for turn in of_mode
        ]
        print(
            f"{mode:<14} {statistics.median(fast):6.2f} ({fast[0]:.2f} to {fast[-1]:.2f})"
            f"   {statistics.median(slow):6.2f} ({slow[0]:.2f} to {slow[-1]:.2f})"
            f"   {statistics.median(received) / 1e6:6.2f} received by a worker",
            flush=True,
        )
