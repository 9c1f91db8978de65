"""What it costs to watch a job: recording for `sumpter trace`, and the metrics endpoint.

    sumpter bench overhead trace
    sumpter bench overhead metrics
    sumpter bench overhead record

`trace` and `metrics` start two jobs of two workers on this machine, one with what is asked about
and one without. They sum the gradients of ResNet-18 a block of steps each by turns, in both orders,
while the other one waits: a pair of blocks takes seconds, so what else the machine does mostly
cancels. Processor time is that of all processes of a job. `record` trains in torch in one process,
by turns with hooks and without. Prints the median over all pairs of "with" over "without", the
standard error of that median, and the quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import psutil

from sumpter._failure import Failure
from sumpter_lab.scaffold.jobs.processes import inherited
from sumpter_lab.scaffold.results.figures import quartiles
from sumpter_lab.scaffold.results.output import check_writable

PORT = 9464
WARMUP = 5
WORKERS = 2
# Where a process' memory lies makes it faster or slower for all its life: so new ones, by and by.
PAIRS_OF_A_START = 20
Figures = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures pairs and prints their ratios."""
    parser = argparse.ArgumentParser(
        "sumpter bench overhead", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("what", choices=("trace", "metrics", "record"))
    parser.add_argument("--pairs", type=int, default=200, help="(default: 200)")
    parser.add_argument("--steps", type=int, default=8, help="of each block (default: 8)")
    parser.add_argument("--port", type=int, default=PORT, help=f"(default: {PORT})")
    parser.add_argument(
        "-o", "--output", type=Path, help="also write each block's figures, as JSON"
    )
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.inner is not None:
        work(asked.inner)
        return
    check_writable(asked.output, "--output")
    pairs: list[dict[str, Figures]] = []
    while len(pairs) < asked.pairs:
        with training(asked.steps) if asked.what == "record" else two_jobs(asked) as block:
            for number in range(min(PAIRS_OF_A_START, asked.pairs - len(pairs))):
                order = (True, False) if number % 2 else (False, True)
                found = {watched: block(watched) for watched in order}
                pairs.append({"with": found[True], "without": found[False]})
                print(f"\rpair {len(pairs)} of {asked.pairs}", end="", file=sys.stderr)
    print(file=sys.stderr)
    if asked.output:
        document = {"what": asked.what, "steps": asked.steps, "pairs": pairs}
        asked.output.write_text(json.dumps(document, indent=1) + "\n")
    print_ratios(pairs)


def print_ratios(pairs: list[dict[str, Figures]]) -> None:
    """A line for each figure: its medians, and the ratio pair by pair."""
    print(f"{'figure':<16} {'without':>9} {'with':>9}   ratio: median, its error (quartiles)")
    for figure in pairs[0]["with"]:
        sides = [statistics.median(pair[side][figure] for pair in pairs) for side in pairs[0]]
        ratios = [pair["with"][figure] / pair["without"][figure] for pair in pairs]
        low, middle, high = quartiles(sorted(ratios))
        # A normal distribution has its quartiles 1.35 standard deviations apart, and a median
        # has 1.25 times the error of a mean.
        error = 1.25 * (high - low) / 1.35 / math.sqrt(len(ratios))
        print(
            f"{figure:<16} {sides[1]:9.4f} {sides[0]:9.4f}   "
            f"{middle - 1:+.2%} +- {error:.2%} ({low - 1:+.2%} to {high - 1:+.2%})"
        )


@contextmanager
def two_jobs(asked: argparse.Namespace) -> Iterator[Callable[[bool], Figures]]:
    """Plays a block of steps in the job that is watched, or in the other."""
    off = ["--set", "trace_events=0"] if asked.what == "trace" else []
    on = ["--metrics-port", str(asked.port)] if asked.what == "metrics" else []
    with job(off) as without, job(on) as with_it:

        def block(watched: bool) -> Figures:
            with reading(asked.port) if watched and on else contextlib.nullcontext():
                return (with_it if watched else without)(asked.steps)

        yield block


@contextmanager
def job(options: list[str]) -> Iterator[Callable[[int], Figures]]:
    """A job of workers that waits for blocks of steps; plays one, with its figures."""
    with tempfile.TemporaryDirectory() as folder, Listener(f"{folder}/driver") as listener:
        run = [sys.executable, "-m", "sumpter", "run", "-n", str(WORKERS), *options, "--"]
        command = [*run, sys.executable, __file__, "trace", "--inner", listener.address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=inherited())
        end = threading.Thread(target=_announce_end, args=(process, listener.address), daemon=True)
        end.start()
        try:
            workers = [listener.accept() for _ in range(WORKERS)]
            if process.poll() is not None:
                raise Failure(f"{' '.join(run)} ended with code {process.returncode}")
            play_block(workers, WARMUP)
            yield lambda steps: block_of(process.pid, workers, steps)
            play_block(workers, 0)
            if process.wait() != 0:
                raise SystemExit(f"{' '.join(run)} failed")
        finally:
            process.terminate()
            process.wait()


def _announce_end(process: subprocess.Popen[bytes], listener: Any) -> None:
    """Connects once for each worker when a job has ended: who waits for them would wait for ever.

    A job that has done its work has a listener no longer.
    """
    process.wait()
    with contextlib.suppress(OSError):
        for _ in range(WORKERS):
            Client(listener).close()


def block_of(launcher: int, workers: list[Connection], steps: int) -> Figures:
    """A block's figures; processor time is that of all processes of the job."""
    before = cpu_s(launcher)
    found = play_block(workers, steps)
    step_s = statistics.median(one["step_s"] for one in found)
    return {
        "CPU ms a step": 1e3 * (cpu_s(launcher) - before) / steps,
        "step ms": 1e3 * step_s,
        "goodput Gb/s": 8e-9 * found[0]["bytes"] / step_s,
    }


def play_block(workers: list[Connection], steps: int) -> list[Figures]:
    """Has all workers play so many steps; what each of them found."""
    for worker in workers:
        worker.send(steps)
    return [worker.recv() for worker in workers]


def cpu_s(launcher: int) -> float:
    """Processor time so far of a process and all that it started."""
    root = psutil.Process(launcher)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return sum(one.user + one.system for one in times)


@contextmanager
def reading(port: int) -> Iterator[None]:
    """Reads the endpoint once, and then each second, in a thread."""
    over, sizes = threading.Event(), []

    def scrape() -> None:
        url = f"http://127.0.0.1:{port}/metrics"
        while True:
            with urllib.request.urlopen(url, timeout=10) as answer:
                sizes.append(len(answer.read()))
            if over.wait(1.0):
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if not sizes:
        raise SystemExit("the endpoint did not answer")


def work(driver: str) -> None:
    """A worker: sums all gradients of a model, step after step, as often as requested."""
    import numpy as np

    import sumpter
    from sumpter_lab import profiles

    sumpter.init()
    tensors = profiles.published("resnet18").tensors
    gradients = {one.name: np.ones(one.bytes // 4, np.float32) for one in reversed(tensors)}

    def step() -> None:
        handles = [
            sumpter.push_pull_async(gradient, average=False, name=name)
            for name, gradient in gradients.items()
        ]
        for handle in handles:
            sumpter.synchronize(handle)

    size = float(sum(gradient.nbytes for gradient in gradients.values()))
    with Client(driver) as orders:
        while steps := orders.recv():
            orders.send({"step_s": timed(step, steps), "bytes": size})
        orders.send({})
    sumpter.barrier()
    sumpter.shutdown()


@contextmanager
def training(steps: int) -> Iterator[Callable[[bool], Figures]]:
    """What trains on the processor for a block of steps, with hooks or without."""
    import torch

    from sumpter_lab.profiles.record import record

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = 3
    layers: list[torch.nn.Module] = []
    for channels in (32, 32, 64, 64, 128, 128):
        layers += [torch.nn.Conv2d(width, channels, 3, padding=1), torch.nn.BatchNorm2d(channels)]
        layers.append(torch.nn.ReLU())
        width = channels
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 10)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def block(watched: bool) -> Figures:
        # So many that the hooks stay until after the last step that is timed.
        hooks = record(model, None, iterations=WARMUP + steps + 1) if watched else None
        with hooks or contextlib.nullcontext():
            timed(step, WARMUP)
            before = time.process_time()
            step_s = timed(step, steps)
            cpu = time.process_time() - before
        return {"CPU ms a step": 1e3 * cpu / steps, "step ms": 1e3 * step_s}

    yield block


def timed(step: Callable[[], None], steps: int) -> float:
    """Seconds of the median step."""
    took = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


if __name__ == "__main__":
    main()
