"""Is a server with several network interfaces as fast as all of them together?

    sudo sumpter bench interfaces

PBox (PHub, SoCC'18) is one server with ten interfaces. Here a server of an emulated cluster has
one or several shaped interfaces, and workers sum a tensor on it alone. Its goodput is set beside
that with the first number of interfaces, and beside the most that the links allow: as many times as
much as there are interfaces, but not more than the workers send. With --down the last interface of
the server, or of a worker, goes down in the middle of a round. Results are checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sumpter._assignments import parse_assignments
from sumpter._failure import Failure, UsageError
from sumpter_lab.scaffold import units
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.emulated import EmulatedJob, emulated_job
from sumpter_lab.scaffold.jobs.remote import call_all
from sumpter_lab.scaffold.network import cluster, interfaces, namespaces
from sumpter_lab.scaffold.network.cluster import Cluster, Machine
from sumpter_lab.scaffold.network.counters import NO_LINK, LinkCounts, link_counts
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.output import check_writable
from sumpter_lab.scaffold.results.table import Column, Row, figure, head_line, row_line
from sumpter_lab.scaffold.signals import orderly

PATIENCE_S = 300.0
SYSTEM = "sumpter"
WARMUP = 1
# Of what an interface receives in a round: when it goes down.
DOWN_AT = 0.2
LOOK_S = 0.01

COLUMNS = (
    Column("NICs", 4, figure("interfaces", "{}")),
    Column("n", 3, figure("workers", "{}")),
    Column("round s", 8, figure("seconds", "{:.3f}")),
    Column("goodput", 9, figure("goodput_mbit", "{:.1f}")),
    Column("ratio", 7, figure("ratio", "{:.3f}")),
    Column("of ideal", 8, figure("of_ideal", "{:.3f}")),
    Column("least share", 11, figure("least_share", "{:.4f}")),
    Column("failover s", 10, figure("failover_s", "{:.3f}")),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every number of interfaces and prints a row for each."""
    parser = argparse.ArgumentParser(
        "sumpter bench interfaces", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-n", "--workers", type=int, default=4, help="machines with a worker")
    parser.add_argument("--interfaces", default="1,2,4", help="numbers of the server's interfaces")
    parser.add_argument("--lanes", type=int, default=1, help="lanes of each interface")
    parser.add_argument("--megabytes", type=float, default=16.0, help="of a tensor in float32")
    parser.add_argument("--rate-mbit", type=float, default=100.0, help="of each interface")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--worker-interfaces", type=int, default=1, help="interfaces of each worker's machine"
    )
    parser.add_argument(
        "--down", choices=("server", "worker"), help="whose interface goes down in a last round"
    )
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", help="a setting of the job")
    parser.add_argument("-o", "--output", type=Path, help="also write every round, as JSON")
    asked = parser.parse_args(arguments)
    counts = units.parse_counts(asked.interfaces, "--interfaces", 1)
    units.check_rate(asked.rate_mbit, "--rate-mbit")
    if min(asked.workers, asked.lanes, asked.rounds, asked.worker_interfaces) < 1:
        raise UsageError("--workers, --lanes, --rounds and --worker-interfaces are 1 or more")
    fewest = asked.worker_interfaces if asked.down == "worker" else min(counts)
    if asked.down and min(fewest, *counts) < 2:
        raise UsageError("--down needs another way: give 2 interfaces or more to both ends")
    check_writable(asked.output, "--output")
    namespaces.check_tools()
    remote.preload()
    about = record.environment()
    found: list[Row] = []
    rates = [asked.rate_mbit] * asked.workers
    with orderly(), cluster.emulated(rates, [asked.rate_mbit]) as machines:
        plugged = {machine.name: asked.worker_interfaces for machine in machines.gpu}
        interfaces.plug(machines, plugged | {machines.cpu[0].name: max(counts)})
        print(head_line(COLUMNS))
        for count in counts:
            found.append(_row(machines, count, asked, found[0] if found else None))
            print(row_line(COLUMNS, found[-1]), flush=True)
            if asked.down:
                interfaces.bring_up(*_last(machines, count, asked))
    if asked.output:
        document = {"about": about, "asked": vars(asked) | {"output": None}, "rows": found}
        asked.output.write_text(json.dumps(document, indent=1) + "\n")


def _row(machines: Cluster, count: int, asked: argparse.Namespace, first: Row | None) -> Row:
    """The rounds of a job whose server has `count` interfaces, and what follows from them."""
    server = machines.cpu[0]
    elements = round(asked.megabytes * 1e6 / 4)
    settings = {"architecture": "ps", "lanes": str(count * asked.lanes)}
    settings |= parse_assignments(asked.set)
    own = {server.name: {"interfaces": interfaces.names(count)}}
    if asked.worker_interfaces > 1:
        listed = interfaces.names(asked.worker_interfaces)
        own |= {machine.name: {"interfaces": listed} for machine in machines.gpu}
    gbps = asked.rate_mbit / 1000
    bandwidths = {machine.name: asked.worker_interfaces * gbps for machine in machines.gpu}
    bandwidths[server.name] = count * gbps
    shapes = [(elements,)]
    with emulated_job(
        machines.gpu, machines.cpu, settings, bandwidths, shapes, [SYSTEM], own_settings=own
    ) as job:
        for number in range(WARMUP):
            job.round(SYSTEM, number, PATIENCE_S)
        both = (count, asked.worker_interfaces)
        rounds = [_round(job, WARMUP + number, both) for number in range(asked.rounds)]
        failover = _failover(job, machines, count, asked) if asked.down else None
    seconds = statistics.median(each["seconds"] for each in rounds)
    goodput_mbit = asked.workers * elements * 4 * 8e-6 / seconds
    moved = [sum(each["received_bytes"][q] for each in rounds) for q in range(count)]
    most = asked.workers * asked.worker_interfaces
    row: Row = {
        "workers": asked.workers,
        "interfaces": count,
        "seconds": seconds,
        "goodput_mbit": goodput_mbit,
        "least_share": min(moved) * count / sum(moved),
        "rounds": rounds,
    }
    if first is not None:
        row["ratio"] = goodput_mbit / first["goodput_mbit"]
        row["of_ideal"] = row["ratio"] * min(first["interfaces"], most) / min(count, most)
    if failover is not None:
        row["down"] = failover
        row["failover_s"] = failover["seconds"] - seconds
    return row


def _last(machines: Cluster, count: int, asked: argparse.Namespace) -> tuple[Machine, int]:
    """The machine whose last interface goes down, and that interface."""
    if asked.down == "worker":
        return machines.gpu[-1], asked.worker_interfaces - 1
    return machines.cpu[0], count - 1


def _round(
    job: EmulatedJob,
    number: int,
    counts: tuple[int, int],
    meanwhile: Callable[[], None] = lambda: None,
) -> Row:
    """A checked round: its seconds, and what each interface of the server and of all workers has
    moved; `counts` are the numbers of both."""
    of_server, of_workers = counts
    server, workers = job.servers[0].pid, [worker.pid for worker in job.workers]

    def moved() -> tuple[list[LinkCounts], list[LinkCounts]]:
        at_workers = (
            sum((link_counts(pid, interfaces.name(q)) for pid in workers), NO_LINK)
            for q in range(of_workers)
        )
        at_server = (link_counts(server, interfaces.name(q)) for q in range(of_server))
        return list(at_server), list(at_workers)

    before = moved()
    ran = job.round(SYSTEM, number, PATIENCE_S, meanwhile)
    after = moved()
    server_links, worker_links = (
        [late - early for early, late in zip(*both, strict=True)]
        for both in zip(before, after, strict=True)
    )
    return {
        "seconds": ran.seconds,
        "received_bytes": [each.received_bytes for each in server_links],
        "sent_bytes": [each.sent_bytes for each in server_links],
        "workers_received_bytes": [each.received_bytes for each in worker_links],
        "workers_sent_bytes": [each.sent_bytes for each in worker_links],
    }


def _failover(job: EmulatedJob, machines: Cluster, count: int, asked: argparse.Namespace) -> Row:
    """A round in which an interface goes down, and the round after it."""
    machine, last = _last(machines, count, asked)
    everyone = [*job.workers, *job.servers]
    (pid,) = (each.pid for each in everyone if each.machine is machine)
    share_bytes = asked.megabytes * 1e6 / count
    if asked.down == "server":
        share_bytes *= asked.workers

    def moved_bytes() -> int:
        counted = link_counts(pid, interfaces.name(last))
        return max(counted.received_bytes, counted.sent_bytes)

    def down() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while moved_bytes() < start + DOWN_AT * share_bytes:
            if time.monotonic() > deadline:
                raise Failure(f"{interfaces.name(last)} of {machine.name} carries nothing")
            time.sleep(LOOK_S)
        interfaces.take_down(machine, last)

    both, number = (count, asked.worker_interfaces), WARMUP + asked.rounds
    start = moved_bytes()
    broken = _round(job, number, both, down)
    following = _round(job, number + 1, both)
    (text,) = call_all(job.workers[:1], PATIENCE_S, "status")
    (known,) = json.loads(text)["jobs"]
    return {**broken, "next": following, "epoch": known["epoch"], "servers": known["servers"]}
