"""Lets a tuner work on a running job: a thread of rank 0.

It measures groups of training steps, tells the tuner their speed, and asks the coordinator for
what the tuner chooses. Which tuner that is, is part of the plan, like the sizes: `sumpter tune
--tuner` and `sumpter.tune(tuner=...)` change it. With the tuner `fixed` the thread sleeps until
the plan changes.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sumpter._errors import ConfigError, SumpterError
from sumpter.profiles import Profile
from sumpter.tuning.layers import (
    Summed,
    are_ordered,
    in_each_step,
    of_profile,
    of_tensors,
    with_bytes,
)
from sumpter.tuning.points import Job, Point, Tuner
from sumpter.tuning.tuners import make

if TYPE_CHECKING:
    from sumpter._core.session import Session

# Training steps of a group: AutoByte's. The first ones of a plan are not measured: connections
# are new, and a step that the change interrupted is longer than others.
GROUP = 10
UNMEASURED = 2
# Of each worker, by machine and rank, by name.
Counters = dict[tuple[str, int], dict[str, float]]

# What is assumed of links that nothing has kept busy.
ASSUMED_GBPS = 0.1
# The part of the bytes that must leave while more is queued for the drain rate to be the network's.
# Under it most of them fit the sockets' buffers, which take them faster than any network.
LEAST_DRAINED = 0.5
# The part of an iteration that is compute, if the model's times are not known.
ASSUMED_COMPUTE = 0.7


class Driver(threading.Thread):
    """Works until the session ends."""

    def __init__(self, session: Session) -> None:
        super().__init__(name="sumpter-tuner", daemon=True)
        self._session, self._worker = session, session.worker
        self._fastest = 0.0

    def run(self) -> None:
        try:
            self._work()
        except SumpterError:
            # The session is over; its operations raise why.
            return

    def _work(self) -> None:
        epoch, tuner = 0, make("fixed")
        while True:
            # A tuner that does nothing needs no measurements.
            waits = epoch + 1 if tuner.name == "fixed" else 0
            plan = json.loads(self._worker.plan(waits))
            epoch, name = plan["epoch"], plan["settings"]["tuner"]
            if name != tuner.name:
                tuner = self._changed(name)
            if tuner.name != "fixed":
                self._turn(tuner, plan)

    def _changed(self, name: str) -> Tuner:
        try:
            tuner = make(name)
        except ConfigError as error:
            say(f"{error}; the sizes stay as they are")
            self._ask({"tuner": "fixed"}, None)
            return make("fixed")
        if name != "fixed":
            say(f"{name} begins: groups of {GROUP} steps")
        return tuner

    def _turn(self, tuner: Tuner, plan: dict[str, Any]) -> None:
        """One group of steps, and what follows from it."""
        epoch, settings = plan["epoch"], plan["settings"]
        sizes = (int(settings[f"{name}_bytes"]) for name in ("partition", "credit", "chunk"))
        at = Point(*sizes)
        begun, _ = self._worker.step(0)
        first, since = self._worker.step(begun + UNMEASURED)
        before, rounds = self._counters(), self._session.rounds()
        self._session.begun = []
        last, until = self._worker.step(first + GROUP)
        after, uses = self._counters(), self._session.uses_since(rounds)
        self._session.begun = None
        if json.loads(self._worker.plan())["epoch"] != epoch or until <= since:
            return
        speed = (last - first) / (until - since)
        tensors = in_each_step(uses, last - first)
        gbps = bandwidths_gbps(before, after)
        choice = tuner.observe(at, speed, self._job(plan, speed, gbps, tensors))
        if choice.why:
            say(f"{tuner.name} {choice.why}")
        if choice.point != at:
            point = choice.point
            asked = {"partition": point.partition, "credit": point.credit, "chunk": point.chunk}
            self._ask({name: str(size) for name, size in asked.items()}, epoch, tuner.name)

    def _ask(self, changes: dict[str, str], epoch: int | None, tuner: str | None = None) -> None:
        changes = changes | ({"tuner": tuner} if tuner else {})
        try:
            self._worker.plan(self._worker.tune(changes, epoch=epoch))
        except ConfigError as error:
            # The plan was changed from outside meanwhile; its state is looked at next.
            say(f"not changed: {error}")

    def _counters(self) -> Counters:
        """Those that the coordinator has of all workers; this one's if it does not answer."""
        try:
            job = json.loads(self._session.status())["jobs"][0]
            return {
                (worker["machine"], worker["rank"]): worker["stats"]["counters"]
                for worker in job["workers"]
            }
        except (SumpterError, LookupError):
            return {("", self._session.rank): json.loads(self._worker.stats())["counters"]}

    def _job(
        self,
        plan: dict[str, Any],
        speed: float,
        gbps: tuple[float, float],
        tensors: Sequence[Summed],
    ) -> Job:
        self._fastest = max(self._fastest, speed)
        return describe(
            plan["machines"]["gpu"],
            plan["machines"]["cpu"],
            plan["architecture"],
            gbps,
            tensors,
            self._fastest,
            self._session.profile,
        )


def describe(
    workers: int,
    servers: int,
    architecture: str,
    gbps: tuple[float, float],
    tensors: Sequence[Summed],
    fastest: float,
    profile: Profile | None,
) -> Job:
    """The features of a job that a tuner gets: all but the sizes, wherever they come from.

    `gbps` is the bandwidth up and down, `fastest` the most iterations a second so far. Without a
    profile the times of the layers are those between their tensors, or guessed from that speed.
    """
    if profile is None:
        layers = of_tensors(tensors, ASSUMED_COMPUTE / fastest)
    else:
        layers = with_bytes(of_profile(profile), sum(tensor.bytes for tensor in tensors))
    return Job(max(workers, 1), servers, *gbps, are_ordered(tensors), layers, architecture)


def bandwidths_gbps(before: Counters, after: Counters) -> tuple[float, float]:
    """The achievable bandwidth up and down of the slowest machine, from a group of steps.

    That of a machine is the sum of its workers', which share its link. Up is the rate at which a
    worker's send queues drained while they were not empty. Bytes over the whole time would measure
    the iteration instead: the bytes of a step are fixed. If few bytes queued, the rate while
    operations were in flight is a lower bound. A receiver has no queue to observe, so a link is
    assumed symmetric unless more was received. Workers whose counters have not moved, as the
    coordinator knows them, tell nothing.
    """
    machines: dict[str, list[tuple[float, float]]] = {}
    for (machine, rank), now in after.items():
        then = before.get((machine, rank), {})
        moved = {name: value - then.get(name, 0.0) for name, value in now.items()}
        # Before its first report, a worker has none.
        if moved.get("bytes_sent_away", 0.0) > 0:
            machines.setdefault(machine, []).append(_rates(moved))
    sums = [[sum(rates) for rates in zip(*workers, strict=True)] for workers in machines.values()]
    up, down = (min(rates) for rates in zip(*sums, strict=True)) if sums else (0.0, 0.0)
    return max(up * 8e-9, ASSUMED_GBPS), max(down * 8e-9, ASSUMED_GBPS)


def _rates(moved: Mapping[str, float]) -> tuple[float, float]:
    """Of one worker's bytes up and down, in bytes/s."""
    busy = max(moved["busy_s"], 1e-6)
    queued, up = moved["wait_send_s"], moved["bytes_sent_away"] / busy
    if queued > 0 and moved["drained_bytes"] >= LEAST_DRAINED * moved["bytes_sent_away"]:
        up = moved["drained_bytes"] / queued
    return up, max(up, moved["bytes_received_away"] / busy)


def say(words: str) -> None:
    """Tells the user of this job, on standard error of rank 0."""
    print(f"tuner: {words}", file=sys.stderr, flush=True)
