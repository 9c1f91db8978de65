"""What it costs to watch a job: recording for `sumpter trace`, and the metrics endpoint.

    python benches/overhead.py trace
    python benches/overhead.py metrics
    python benches/overhead.py record

`trace` and `metrics` sum the gradients of ResNet-18 again and again in two workers on this machine,
by turns with and without what is asked about, in both orders. A worker's processor time is that of
its steps, without its start; the job's is that of all its processes, from start to end. `record`
trains in torch in one process, by turns with hooks and without. Prints the median over all pairs of
"with" over "without", and the quartiles; a pair's two runs follow each other, so what else the
machine does mostly cancels.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = 9464
WARMUP, BLOCK = 5, 20
Figures = dict[str, float]


def main() -> None:
    """Measures pairs and prints their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("trace", "metrics", "record"))
    parser.add_argument("--pairs", type=int, default=11, help="(default: 11)")
    parser.add_argument("--steps", type=int, default=150, help="of each run (default: 150)")
    parser.add_argument("--port", type=int, default=PORT, help=f"(default: {PORT})")
    parser.add_argument("-o", "--output", type=Path, help="also write each run's figures, as JSON")
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inner is not None:
        work(asked)
        return
    pairs = []
    train = training() if asked.what == "record" else None
    for number in range(asked.pairs):
        order = (True, False) if number % 2 else (False, True)
        found = train() if train else {watched: measure(asked, watched) for watched in order}
        pairs.append({"with": found[True], "without": found[False]})
        print(f"pair {number + 1} of {asked.pairs}", file=sys.stderr)
        if asked.output:
            document = {"what": asked.what, "steps": asked.steps, "pairs": pairs}
            asked.output.write_text(json.dumps(document, indent=1) + "\n")
    print_ratios(pairs)


def print_ratios(pairs: list[dict[str, Figures]]) -> None:
    """A line for each figure: its medians, and the ratio pair by pair."""
    print(f"{'figure':<20} {'without':>9} {'with':>9}   ratio: median (quartiles)")
    for figure in pairs[0]["with"]:
        sides = [statistics.median(pair[side][figure] for pair in pairs) for side in pairs[0]]
        ratios = [pair["with"][figure] / pair["without"][figure] for pair in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{figure:<20} {sides[1]:9.4f} {sides[0]:9.4f}   "
            f"{middle - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})"
        )


def measure(asked: argparse.Namespace, watched: bool) -> Figures:
    """The figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        inner = [__file__, asked.what, "--inner", folder, "--steps", str(asked.steps)]
        command = [sys.executable, *inner]
        run = [sys.executable, "-m", "sumpter", "run", "-n", "2"]
        if asked.what == "trace" and not watched:
            run += ["--set", "trace_events=0"]
        scrape = asked.what == "metrics" and watched
        run += ["--metrics-port", str(asked.port)] if scrape else []
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with scraping(asked.port) if scrape else nothing() as scrapes:
            subprocess.run([*run, "--", *command], check=True, stdout=subprocess.DEVNULL)
        if scrape and not scrapes:
            raise SystemExit("the endpoint never answered")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        ranks = [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(2)]
    return {
        "worker CPU s": sum(rank["cpu_s"] for rank in ranks),
        "job CPU s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "step ms": 1e3 * ranks[0]["step_s"],
        "goodput Gb/s": 8e-9 * ranks[0]["bytes"] / ranks[0]["step_s"],
    }


@contextmanager
def nothing() -> Iterator[list[int]]:
    yield []


@contextmanager
def scraping(port: int) -> Iterator[list[int]]:
    """Reads the endpoint each second, in a thread; the sizes of the answers."""
    over, sizes = threading.Event(), []

    def scrape() -> None:
        while not over.wait(1.0):
            try:
                url = f"http://127.0.0.1:{port}/metrics"
                with urllib.request.urlopen(url, timeout=1) as answer:
                    sizes.append(len(answer.read()))
            except OSError:
                continue

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


def work(asked: argparse.Namespace) -> None:
    """A worker: sums all gradients of a model, step after step."""
    import numpy as np

    import sumpter
    from sumpter import profiles

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

    found = timed(step, asked.steps)
    found["bytes"] = sum(gradient.nbytes for gradient in gradients.values())
    (asked.inner / str(sumpter.rank())).write_text(json.dumps(found))
    sumpter.barrier()
    sumpter.shutdown()


def training() -> Callable[[], dict[bool, Figures]]:
    """What trains on the processor for a pair of blocks of steps, without hooks and with."""
    import torch

    import sumpter.torch as bps

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
        steps = BLOCK + WARMUP + 1
        with bps.record(model, None, iterations=steps) if watched else nothing():
            found = timed(step, BLOCK)
        return {"CPU s": found["cpu_s"], "iteration ms": 1e3 * found["step_s"]}

    return lambda: {watched: block(watched) for watched in (False, True)}


def timed(step: Callable[[], None], steps: int) -> Figures:
    """Processor time of this process in all steps, and the median step; seconds."""
    for _ in range(WARMUP):
        step()
    took, cpu_s = [], time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        took.append(time.perf_counter() - begin)
    return {"cpu_s": time.process_time() - cpu_s, "step_s": statistics.median(took)}


if __name__ == "__main__":
    main()
