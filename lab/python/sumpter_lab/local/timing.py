"""Interleaved timing: what is compared takes turns, so that what the machine does meanwhile hits
all alike. A median of many turns stands for each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sumpter_lab import _native
from sumpter_lab.local import memory

# Runs a thing so many times and returns the seconds.
Runner = Callable[[int], float]

# How long one turn should take: far above what a clock and a call cost.
_TURN_S = 0.004
_MOST_REPEATS = 1_000_000

# The least part of a Python call's time that is taken to be work on data.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Step:
    """A call of a kernel of Sumpter on some elements; see `_native.bench_steps`."""

    kernel: str
    dtype: str
    to: np.ndarray
    x: np.ndarray
    elements: int
    other: np.ndarray | None = None

    def call(self) -> tuple[str, str, int, int, int, int]:
        other = 0 if self.other is None else memory.address(self.other)
        to, x = memory.address(self.to), memory.address(self.x)
        return (self.kernel, self.dtype, to, x, other, self.elements)


def native(*steps: Step) -> Runner:
    """Repeats kernels of Sumpter in a native loop."""
    calls = [step.call() for step in steps]
    # The arrays must live longer than the calls, so the function holds them.
    return lambda repeats, keep=steps: _native.bench_steps(calls, repeats)


def looped(call: Callable[[], object], idle: Callable[[], object] | None = None) -> Runner:
    """Repeats a Python call. The cost of calling `idle`, the same on next to no data, is taken
    off, because native loops have none."""

    def run(repeats: int) -> float:
        gross = _seconds(call, repeats)
        net = gross - (_seconds(idle, repeats) if idle else 0.0)
        # Where the call costs all and the data nothing, noise could make it less than nothing.
        return max(net, _LEAST_SHARE * gross)

    return run


def medians(
    runners: Mapping[str, Runner], rounds: int, turn_s: float = _TURN_S
) -> dict[str, float]:
    """Seconds of one repeat of each, medians over `rounds` turns."""
    repeats = {name: _calibrate(run, turn_s) for name, run in runners.items()}
    samples: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(rounds):
        order = list(runners)
        # A system that runs after one with a large working set pays for its cache misses: rotate.
        shift = turn % len(order)
        for name in order[shift:] + order[:shift]:
            samples[name].append(runners[name](repeats[name]) / repeats[name])
    return {name: statistics.median(values) for name, values in samples.items()}


def _calibrate(run: Runner, turn_s: float) -> int:
    run(1)
    repeats = 1
    while True:
        started = time.perf_counter()
        run(repeats)
        seconds = time.perf_counter() - started
        if seconds >= turn_s / 4 or repeats >= _MOST_REPEATS:
            return max(1, min(_MOST_REPEATS, round(repeats * turn_s / max(seconds, 1e-9))))
        repeats *= 4


def _seconds(call: Callable[[], object], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - started
