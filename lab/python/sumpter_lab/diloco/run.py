"""Training over a wide-area link: synchronous steps beside LocalSGD and DiLoCo (root, Linux).

    sudo sumpter bench diloco

Two sites are network namespaces, and the link between them is a process that delays each packet and
passes on so many bytes a second, with a bounded queue (TUN devices: the kernel's netem is not
needed). First comes what the link carries: the round trip, plain TCP both ways at once, and sums.
Then every mode trains a small GPT on the source of Python's standard library from the start,
interleaved. A step computes for `--compute-s` at least, by waiting, as if a device computed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sumpter._assignments import parse_assignments
from sumpter._failure import UsageError
from sumpter_lab.diloco import report, wide_area
from sumpter_lab.diloco.modes import Load, Mode, Training
from sumpter_lab.diloco.path import Shape
from sumpter_lab.scaffold import units
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.emulated import EmulatedJob, emulated_job
from sumpter_lab.scaffold.jobs.remote import Remote, call_all, end_all
from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.cluster import Machine
from sumpter_lab.scaffold.network.tournament import START_TIMEOUT_S
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.output import check_writable
from sumpter_lab.scaffold.signals import orderly

PATIENCE_S = 3600.0
# Slow start over a long path takes seconds.
PROBE_WARMUP_S, PROBE_WINDOW_S = 4.0, 5.0
SUM_BYTES = 4 << 20
SUMS = 4  # after one to warm up


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the link, then every mode, interleaved, and prints a row for each."""
    asked = _parser().parse_args(arguments)
    if asked.clean:
        namespaces.check_tools()
        print(f"removed {namespaces.remove_leftovers()} network namespace(s)")
        return
    shape = _shape(asked)
    modes = _modes(asked)
    check_writable(asked.output, "--output")
    wide_area.check_host()
    remote.preload("sumpter_lab.diloco.rank", "sumpter_lab.diloco.relay")
    about = record.environment()
    with orderly(), wide_area.joined(shape, idle_restart=asked.idle_restart) as (sites, relay):
        raw_mbit = _plain_tcp_mbit(sites)
        with _job(sites, asked) as job:
            link = _link(job, raw_mbit, asked.per_site)
            print(report.link_line(link), flush=True)
            turns = _turns(job, relay, modes, asked)
    rows = report.rows(turns, asked.target)
    report.show(rows, asked.target)
    if asked.output:
        options = {name: value for name, value in vars(asked).items() if name != "output"}
        document = {"about": about, "asked": options, "link": link, "turns": turns, "rows": rows}
        asked.output.write_text(json.dumps(document, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "sumpter bench diloco", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rate-mbit", type=float, default=20.0, help="of the link, each way")
    parser.add_argument("--delay-ms", type=float, default=50.0, help="of the link, one way")
    parser.add_argument(
        "--queue-bytes", type=int, help="before the link (default: a round trip at its rate)"
    )
    parser.add_argument("--per-site", type=int, default=1, help="workers in each of the two sites")
    parser.add_argument("--sync-every", type=int, default=20, help="local steps in a round")
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--sync-delay", type=int, default=6, help="steps until a result is used")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16, help="of each worker")
    parser.add_argument("--compute-s", type=float, default=0.1, help="of a step, at least")
    parser.add_argument("--every", type=int, default=10, help="steps between losses")
    parser.add_argument("--target", type=float, default=2.4, help="loss, nats per character")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--idle-restart", action=argparse.BooleanOptionalAction, default=True,
        help="tcp_slow_start_after_idle, as Linux has it by default",
    )  # fmt: skip
    parser.add_argument("--set", metavar="NAME=VALUE", nargs="*", help="settings of the job")
    parser.add_argument("--clean", action="store_true", help="only remove what killed runs left")
    parser.add_argument("-o", "--output", type=Path, help="also write every turn, as JSON")
    return parser


def _shape(asked: argparse.Namespace) -> Shape:
    rate_mbit = units.check_rate(asked.rate_mbit, "--rate-mbit")
    if not 0 <= asked.delay_ms <= 10_000:
        raise UsageError(f"--delay-ms {asked.delay_ms:g} is not within 0 to 10000")
    delay_s = asked.delay_ms / 1000
    # Less than some packets, and nothing would pass.
    round_trip_bytes = max(64_000, round(2 * delay_s * rate_mbit * 1e6 / 8))
    queue_bytes = round_trip_bytes if asked.queue_bytes is None else asked.queue_bytes
    if queue_bytes < 2000:
        raise UsageError(f"--queue-bytes {queue_bytes}: a queue has room for a packet, 2000 bytes")
    return Shape(rate_mbit, delay_s, queue_bytes)


def _modes(asked: argparse.Namespace) -> list[Mode]:
    """What is compared, in the order of the first turn."""
    for name in ("per_site", "sync_every", "fragments", "steps", "batch", "every", "turns"):
        if getattr(asked, name) < 1:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} {getattr(asked, name)}: give a number from 1")
    every, delay, parts = asked.sync_every, asked.sync_delay, asked.fragments
    if not 0 <= delay < every:
        raise UsageError(f"--sync-delay {delay} is not from 0 and below --sync-every, {every}")
    return [
        Mode("synchronous"),
        Mode("LocalSGD", every),
        Mode("DiLoCo", every, outer=True),
        Mode("DiLoCo, delayed", every, outer=True, delay=delay),
        Mode(f"DiLoCo, {parts} fragments, delayed", every, True, parts, delay),
    ]


def _job(
    sites: Sequence[Machine], asked: argparse.Namespace
) -> AbstractContextManager[EmulatedJob]:
    """The job: workers in both sites, no servers; the coordinator is in the first site."""
    places = [site for site in sites for _ in range(asked.per_site)]
    settings = {"lanes": "1", **parse_assignments(asked.set)}
    load = Load(((SUM_BYTES // 4,),), asked.per_site)
    return emulated_job(places, [], settings, {}, load, ["sumpter"], "Learner")


def _plain_tcp_mbit(sites: Sequence[Machine]) -> float:
    """What one plain TCP connection carries each way, both ways at once: the slower direction."""
    probes = [Remote(site, "Probe", site.address) for site in sites]
    try:
        ports = call_all(probes, START_TIMEOUT_S, "port")
        for probe, to in zip(probes, (None, (sites[0].address, ports[0])), strict=True):
            probe.send("exchange", to, PROBE_WARMUP_S, PROBE_WINDOW_S)
        seen = remote.gather(probes, START_TIMEOUT_S)
    finally:
        end_all(probes, timeout_s=1.0)
    return min(one.received_mbit for one in seen)


def _link(job: EmulatedJob, raw_mbit: float, per_site: int) -> dict[str, float]:
    """What the link carries, by plain TCP and by sums of one tensor."""
    first, far = job.workers[0], job.workers[per_site]
    (port,) = call_all([first], START_TIMEOUT_S, "listen")
    (round_trip_s,) = call_all([far], START_TIMEOUT_S, "round_trip_s", first.machine.address, port)
    rounds = [job.round("sumpter", number, PATIENCE_S).seconds for number in range(SUMS + 1)]
    # Without servers each of two sites sends half of its contribution and half of the sums.
    sums_mbit = sorted(SUM_BYTES * 8e-6 / seconds for seconds in rounds[1:])
    return {
        "round_trip_s": round_trip_s,
        "plain_tcp_mbit": raw_mbit,
        "sums_mbit": sums_mbit[len(sums_mbit) // 2],
        "first_sum_mbit": SUM_BYTES * 8e-6 / rounds[0],
    }


def _turns(
    job: EmulatedJob, relay: Remote, modes: Sequence[Mode], asked: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every mode once a turn, each the first of some."""
    training = Training(asked.steps, asked.batch, asked.compute_s, asked.every)
    turns = []
    for turn in range(asked.turns):
        start = turn % len(modes)
        for mode in (*modes[start:], *modes[:start]):
            (before,) = call_all([relay], START_TIMEOUT_S, "counts")
            found = call_all(job.workers, PATIENCE_S, "train", mode, training)
            (after,) = call_all([relay], START_TIMEOUT_S, "counts")
            turns.append(
                {
                    "mode": mode.name,
                    "turn": turn,
                    "ranks": found,
                    "link_bytes": [b[0] - a[0] for a, b in zip(before, after, strict=True)],
                    "dropped": sum(b[1] - a[1] for a, b in zip(before, after, strict=True)),
                }
            )
            print(report.turn_line(turns[-1], asked.target), flush=True)
    return turns
