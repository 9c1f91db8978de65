"""Plays a script: waits for what would be computed, and starts sums when gradients are ready.

Where compute stands is kept as an absolute time, not as a sequence of durations: what a wait
overshoots is taken off the next one, and what this process itself takes to start a sum does not
delay the compute, as it would not on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from sumpter_lab.replay.script import Script


class Sum(Protocol):
    """A sum under way."""

    def poll(self) -> bool: ...
    def wait(self) -> object: ...


class Optimizer(Protocol):
    """What ends an iteration."""

    def decide(self) -> None: ...  # the backward pass is over, sums may be under way
    def step(self) -> None: ...  # all sums are there


class Clock:
    """The monotonic clock of the system."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep_until(self, moment_s: float) -> None:
        # From Python 3.11 on, Linux is given the absolute time at which the sleep ends.
        time.sleep(max(0.0, moment_s - time.monotonic()))


class Pace:
    """Where compute stands."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at_s = clock.now_s()

    def until(self, moment_s: float) -> None:
        """Computes until this moment."""
        self.at_s = moment_s
        self._clock.sleep_until(moment_s)

    def spend(self, duration_s: float) -> None:
        """Computes for so long."""
        self.until(self.at_s + duration_s)

    def catch_up(self) -> None:
        """Compute had to wait for what has just happened."""
        self.at_s = max(self.at_s, self._clock.now_s())

    def wait_for(self, sum_: Sum) -> None:
        """Compute goes on when the sum is there."""
        if not sum_.poll():
            sum_.wait()
            self.catch_up()


def play(
    script: Script,
    submit: Callable[[int], Sum],
    iterations: int,
    pace: Pace,
    *,
    overlap: bool,
    optimizer: Optimizer | None = None,
) -> list[float]:
    """Plays one iteration more than asked for, as a warm-up, and returns when each one began.

    The times have one more entry: when another iteration could have begun. `submit` starts the sum
    of a tensor. With `overlap` a layer's forward pass waits only for the sums of its own tensors.
    What an `optimizer` does takes as long as it takes; it needs all sums, so not with `overlap`.
    """
    waiting: dict[int, Sum] = {}
    everything = range(len(script.shapes))
    # What the first layer waits for.
    first = script.tensors_of[0] if overlap else everything

    def arrive(tensors: Iterable[int]) -> None:
        for index in tensors:
            if index in waiting:
                pace.wait_for(waiting.pop(index))

    def finish() -> None:
        """Ends an iteration as far as the next one needs it."""
        begun = bool(waiting)
        if begun and optimizer is not None:
            optimizer.decide()
            pace.catch_up()
        arrive(first)
        if begun and optimizer is not None:
            optimizer.step()
            pace.catch_up()

    starts_s = []
    for _ in range(iterations + 1):
        finish()
        starts_s.append(pace.at_s)
        for tensors, forward_s in zip(script.tensors_of, script.forward_s, strict=True):
            arrive(tensors)
            pace.spend(forward_s)
        begun_s = pace.at_s
        for index, ready_s in script.ready:
            pace.until(begun_s + ready_s)
            waiting[index] = submit(index)
        pace.until(begun_s + script.backward_s)
    finish()
    starts_s.append(pace.at_s)
    arrive(everything)
    return starts_s


def periods(starts_s: list[float]) -> list[float]:
    """How long each iteration took but the first, before which nothing was under way."""
    return [after - before for before, after in zip(starts_s[1:], starts_s[2:], strict=False)]
