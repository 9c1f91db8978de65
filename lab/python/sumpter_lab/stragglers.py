"""Does less synchronization make Sumpter faster than a ring when no CPU machine helps?

    sudo sumpter bench stragglers

Without CPU machines a ring and Sumpter move the same bytes. BytePS (OSDI 2020, section 7) was
faster than a ring all the same, and its authors suspect that a ring's many dependent steps suffer
more when machines are not in step. This emulates n GPU machines, lets ranks begin each round late
by what is asked for, and times Sumpter and Gloo's ring by turns. What counts is the time after the
last rank has begun: before that, no one can be done. The waiting of Sumpter's last rounds by cause
is that of `sumpter trace --explain`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sumpter import _native
from sumpter._assignments import parse_assignments
from sumpter_lab.profiles import published
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.remote import Remote, call_all, end_all, gather
from sumpter_lab.scaffold.network import cluster, namespaces
from sumpter_lab.scaffold.results.figures import quartiles
from sumpter_lab.scaffold.results.output import check_writable
from sumpter_lab.scaffold.signals import orderly

PATIENCE_S = 120.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures every pattern of lateness and prints a row for each."""
    parser = argparse.ArgumentParser(
        "sumpter bench stragglers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-n", "--workers", type=int, default=4)
    parser.add_argument("--rate-mbit", type=float, default=200.0)
    parser.add_argument("--model", help="all its gradients instead of one tensor of 16 MiB")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--late-s", type=float, default=0.2, help="the largest lateness")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", help="also time Sumpter with this setting, interleaved"
    )
    parser.add_argument("-o", "--output", type=Path, help="also write every round, as JSON")
    asked = parser.parse_args(arguments)
    check_writable(asked.output, "--output")
    namespaces.check_tools()
    shapes: list[tuple[int, ...]] = [(4 << 20,)]
    if asked.model:
        shapes = [(tensor.bytes // 4,) for tensor in published(asked.model).tensors]
    rates, draw = [asked.rate_mbit] * asked.workers, random.Random(0)
    patterns = {
        "in step": lambda: [0.0] * asked.workers,
        "rank 0 late": lambda: [asked.late_s] + [0.0] * (asked.workers - 1),
        "the last rank late": lambda: [0.0] * (asked.workers - 1) + [asked.late_s],
        "each late at random": lambda: [draw.uniform(0, asked.late_s) for _ in rates],
    }
    jobs = {"sumpter": {}} | ({asked.set: parse_assignments([asked.set])} if asked.set else {})
    remote.preload()
    found = []
    with orderly(), cluster.emulated(rates, []) as machines:
        for name, delays in patterns.items():
            drawn = [delays() for _ in range(asked.rounds + 1)]
            found.append({"pattern": name} | measure(machines.gpu, shapes, drawn, jobs))
            print_row(found[-1])
    if asked.output:
        document = {"asked": vars(asked) | {"output": None}, "rows": found}
        asked.output.write_text(json.dumps(document, indent=1) + "\n")


def print_row(row: dict) -> None:
    """Times after the last rank began, and what Sumpter's ranks waited for."""
    own, ring = (statistics.median(row["after_last_s"][name]) for name in ("sumpter", "gloo"))
    ratios = [
        theirs / ours
        for ours, theirs in zip(
            row["after_last_s"]["sumpter"], row["after_last_s"]["gloo"], strict=True
        )
    ]
    low, middle, high = quartiles(sorted(ratios))
    waits = ", ".join(f"{cause} {share:.0%}" for cause, share in row["waits"].items())
    others = [name for name in row["after_last_s"] if "=" in name]
    for name in others:
        pairs = zip(row["after_last_s"][name], row["after_last_s"]["sumpter"], strict=True)
        ratios_of = sorted(one / other for one, other in pairs)
        print(
            f"{row['pattern']}: {name} {statistics.median(ratios_of):.4f} ({ratios_of[0]:.4f} to "
            f"{ratios_of[-1]:.4f}) of the time"
        )
    print(
        f"{row['pattern']}: Sumpter {own:.3f} s, ring {ring:.3f} s, ring/Sumpter {middle:.3f} "
        f"({low:.3f} to {high:.3f}); {waits}",
        flush=True,
    )


def measure(
    machines: Sequence[cluster.Machine],
    shapes: Sequence[tuple[int, ...]],
    drawn: Sequence[Sequence[float]],
    jobs: dict[str, dict[str, str]],
) -> dict:
    """A round of each system for each list of delays, the first to warm up.

    Each of `jobs` is Sumpter with these settings; Gloo's ring is in the processes of the first.
    """
    token = _native.generate_token()
    shared = {"log": "warn", "token": token, "servers": "0", "lanes": "1"}
    systems = {name: [name] for name in jobs}
    systems["sumpter"].append("gloo")
    after: dict[str, list[float]] = {name: [] for names in systems.values() for name in names}
    started: dict[str, list[Remote]] = {}
    meetings = {}
    try:
        for job, settings in jobs.items():
            own = shared | settings
            started[job] = workers = [
                Remote(machine, "Worker", rank, len(machines), machine.address, own, shapes)
                for rank, machine in enumerate(machines)
            ]
            (meetings[job],) = call_all(workers[:1], PATIENCE_S, "host")
            call_all(workers, PATIENCE_S, "join", meetings[job], systems[job])
        workers_of = {name: started[job] for job, names in systems.items() for name in names}
        for number, delays in enumerate(drawn):
            for system, times in after.items():
                times.append(staggered(workers_of[system], system, number, delays))
        first = meetings["sumpter"].coordinator
        waits = explained(machines[0], first, token, len(drawn) - 1)
        for workers in started.values():
            call_all(workers, PATIENCE_S, "stop")
            call_all(workers[:1], PATIENCE_S, "stop_hosting")
    finally:
        end_all([worker for workers in started.values() for worker in workers], timeout_s=5.0)
    times = {system: times[1:] for system, times in after.items()}
    return {"after_last_s": times, "delays_s": drawn[1:], "waits": waits}


def staggered(
    workers: Sequence[Remote], system: str, number: int, delays: Sequence[float]
) -> float:
    """Runs one checked round; seconds from the last rank's beginning to the last one's end."""
    call_all(workers, PATIENCE_S, "prepare", system, number)
    begin = time.perf_counter()
    for delay, worker in sorted(zip(delays, workers, strict=True), key=lambda one: one[0]):
        time.sleep(max(0.0, begin + delay - time.perf_counter()))
        worker.send("run", system)
    last = time.perf_counter()
    gather(workers, PATIENCE_S)
    took = time.perf_counter() - last
    call_all(workers, PATIENCE_S, "check", system, number)
    return took


def explained(
    machine: cluster.Machine, coordinator: str, token: str, steps: int
) -> dict[str, float]:
    """What the steps of all ranks waited for, the mean by cause; the largest first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sumpter", "trace", "--steps", str(steps), "--explain"]
        secret = Path(folder) / "token"
        secret.write_text(token)
        secret.chmod(0o600)
        command += ["--json", "--coordinator", coordinator, "--token-file", str(secret)]
        command += ["-o", str(Path(folder) / "run.pftrace")]
        inside = ["ip", "netns", "exec", machine.namespace, *command]
        text = subprocess.run(inside, check=True, capture_output=True, text=True).stdout
    steps_found = json.loads(text)
    total: Counter[str] = Counter()
    for one in steps_found:
        total.update(one["shares"])
    return {cause: share / len(steps_found) for cause, share in total.most_common()}
