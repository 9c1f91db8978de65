"""`sumpter bench tune`: the cluster, and each tuner's iterations."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from ctypes import c_long
from pathlib import Path
from typing import Any

from sumpter.profiles import save
from sumpter.tuning.driver import GROUP, UNMEASURED
from sumpter_lab.replay.script import Script
from sumpter_lab.scaffold.experiment import START_S, Progress, measured_cluster, timeout_s
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.emulated import EmulatedJob, emulated_job
from sumpter_lab.scaffold.jobs.remote import call_all, gather
from sumpter_lab.scaffold.network import cluster
from sumpter_lab.scaffold.network.cluster import Cluster
from sumpter_lab.scaffold.network.tournament import Links
from sumpter_lab.scaffold.optimum import Optimum, optimum
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.figures import ratio
from sumpter_lab.tune import spec
from sumpter_lab.tune.scaled import Model
from sumpter_lab.tune.spec import SYSTEM, Spec

# How often is looked which iteration is under way.
POLL_S = 0.01
# Iterations after which a tuner that was sent away has noticed.
FLUSH = GROUP + UNMEASURED + 1
# Iterations of the second job between two looks at whether it should leave.
SECOND_ITERATIONS = 3


def run(asked: Spec, progress: Progress) -> Generator[dict[str, Any], None, None]:
    """Builds the cluster, measures its links and yields what each tuner did.

    The cluster is removed when the generator ends or is closed, and by SIGINT, SIGTERM or SIGHUP.
    """
    spec.check(asked)
    about = record.environment()
    # The library of `bayes` takes seconds to import, which a job of short iterations would feel.
    libraries = ("bayes_opt",) if "bayes" in asked.tuners else ()
    remote.preload("sumpter_lab.tune.rank", *libraries)
    wanted = asked.job.cluster()
    with measured_cluster(
        wanted.gpu_rates_mbit,
        wanted.cpu_rates_mbit,
        progress,
        lambda machines, links: (
            START_S + len(asked.tuners) * _Run(asked, machines, links).duration_s()
        ),
    ) as (machines, links):
        one = _Run(asked, machines, links)
        progress.stage("starting the job", START_S)
        with ExitStack() as running:
            one.start(running)
            for tuner in asked.tuners:
                progress.stage(f"tuner {tuner}", one.duration_s())
                yield {**one.run(tuner, progress.advance), **about}


class _Run:
    """One job, tuned by one tuner after the other."""

    def __init__(self, asked: Spec, machines: Cluster, links: Links) -> None:
        self._asked, self._machines = asked, machines
        job, at = asked.job, asked.point
        self._times: Optimum = optimum(machines.gpu, machines.cpu, job.sized.bytes, links)
        allreduce_s = self._times.allreduce_seconds
        self._script: Script = job.script(at.ratio, allreduce_s)
        self._model = Model(job.scale, job.slowdown(at.ratio, allreduce_s))
        self._iteration: c_long = remote.counter()
        slowest_s = (self._script.compute_s + allreduce_s) * self._slowest()
        self._timeout_s = timeout_s(slowest_s * (job.iterations + 1))
        self._second: _SecondJob | None = None
        self._profile: str | None = None

    def _slowest(self) -> float:
        """How many times longer sums take where links are slowest and shared."""
        least = min(self._asked.rates_mbit, default=self._asked.job.bandwidth_mbps)
        shared = 1 if self._asked.second_job is None else 2
        return max(1.0, shared * self._asked.job.bandwidth_mbps / least)

    def duration_s(self) -> float:
        """About how long a tuner's iterations take."""
        each_s = max(self._script.compute_s, self._times.seconds) * 1.3
        return (self._asked.job.iterations + FLUSH) * each_s

    def start(self, running: ExitStack) -> None:
        """Starts the job, and the second one, which then waits."""
        asked, machines = self._asked, self._machines
        settings = {**asked.job.settings_at(asked.point), "lanes": "1", "log": "error"}
        if asked.profiled:
            file = Path(running.enter_context(tempfile.TemporaryDirectory())) / "profile.json"
            save(asked.job.profile.slower(self._model.slowdown), file)
            self._profile = str(file)

        def started(load: object, kind: str) -> EmulatedJob:
            one = emulated_job(machines.gpu, machines.cpu, settings, {}, load, [SYSTEM], kind)
            return running.enter_context(one)

        self._job = started((self._script, self._model, self._iteration), "Tuned")
        if asked.second_job is not None:
            second = started((self._script, SECOND_ITERATIONS), "Player")
            self._second = _SecondJob(second, self._timeout_s)

    def run(self, tuner: str, advance: Callable[[float], None]) -> dict[str, Any]:
        """All iterations with one tuner, which knows nothing yet."""
        asked, job = self._asked, self._job
        began = self._rates(-1)
        self._tune("fixed")
        self._begin(FLUSH)
        job.round(SYSTEM, 0, self._timeout_s)
        self._begin(asked.job.iterations)
        self._tune(tuner)
        events = _Events(asked, began, self._rates, self._second)

        def meanwhile() -> None:
            told = 0
            while not any(worker.answered() for worker in job.workers):
                at = self._iteration.value
                events.happen(at)
                if at > told:
                    advance((at - told) / (asked.job.iterations + FLUSH))
                    told = at
                time.sleep(POLL_S)

        played = job.round(SYSTEM, 1, self._timeout_s, meanwhile)
        events.end()
        by_rank = call_all(job.workers, self._timeout_s, "periods", SYSTEM)
        ((sizes, groups),) = call_all(job.workers[:1], self._timeout_s, "noted")
        return {
            **self._described(),
            "tuner": tuner,
            "periods_s": [sum(same) / len(same) for same in zip(*by_rank, strict=True)],
            "sizes": sizes,
            "groups": groups,
            "events": events.seen,
            "cores_idle": ratio(played.cores.idle, played.cores.total),
            "cores_steal": ratio(played.cores.steal, played.cores.total),
        }

    def _begin(self, iterations: int) -> None:
        call_all(self._job.workers, self._timeout_s, "begin", SYSTEM, iterations)

    def _tune(self, tuner: str) -> None:
        call_all(self._job.workers[:1], self._timeout_s, "tune", tuner, self._profile)

    def _rates(self, iteration: int) -> float:
        """Gives the links what they carry in an iteration."""
        rate = self._asked.rate_at(iteration)
        cluster.reshape(self._machines, rate)
        return rate

    def _described(self) -> dict[str, Any]:
        job, script = self._asked.job, self._script
        return {
            "profile": job.profile.name,
            "workers": len(self._machines.gpu),
            "servers": len(self._machines.cpu),
            "bandwidth_mbps": job.bandwidth_mbps,
            "scale": job.scale,
            "slowdown": self._model.slowdown,
            "stands_for_gbps": job.bandwidth_mbps * job.scale * self._model.slowdown / 1000,
            "bytes": script.bytes,
            "compute_seconds": script.compute_s,
            "optimum_seconds": self._times.seconds,
            "bound_seconds": max(script.compute_s, self._times.seconds),
            "settings": job.settings_at(self._asked.point),
            "rates_mbit": list(self._asked.rates_mbit),
            "every": self._asked.every,
            "second_job": self._asked.second_job,
            "profiled": self._asked.profiled,
        }


class _Events:
    """What happens to the cluster while a tuner's iterations are played."""

    def __init__(
        self,
        asked: Spec,
        rate_mbit: float,
        reshape: Callable[[int], float],
        second: _SecondJob | None,
    ) -> None:
        self._asked, self._rate, self._reshape, self._second = asked, rate_mbit, reshape, second
        self.seen: list[dict[str, Any]] = [{"iteration": 0, "rate_mbit": rate_mbit}]

    def happen(self, iteration: int) -> None:
        """Does what is due in an iteration."""
        if self._asked.rate_at(iteration) != self._rate:
            self._rate = self._reshape(iteration)
            self.seen.append({"iteration": iteration, "rate_mbit": self._rate})
        if self._second is not None and self._asked.second_job is not None:
            first, last = self._asked.second_job
            playing = self._second.playing
            self._second.play(first <= iteration < last)
            if self._second.playing != playing:
                self.seen.append({"iteration": iteration, "second_job": not playing})

    def end(self) -> None:
        """Nothing is under way any more."""
        if self._second is not None:
            self._second.end()


class _SecondJob:
    """A job that plays a few iterations at a time, as long as it is wanted."""

    def __init__(self, job: EmulatedJob, timeout_s: float) -> None:
        self._job, self._timeout_s = job, timeout_s
        self.playing = False
        call_all(job.workers, timeout_s, "prepare", SYSTEM, 0)

    def play(self, wanted: bool) -> None:
        """Begins, goes on or ends, once what it does is done."""
        if self.playing and all(worker.answered() for worker in self._job.workers):
            gather(self._job.workers, self._timeout_s)
            self.playing = False
        if wanted and not self.playing:
            for worker in self._job.workers:
                worker.send("run", SYSTEM)
            self.playing = True

    def end(self) -> None:
        """Waits for what it does, and checks its sums."""
        if self.playing:
            gather(self._job.workers, self._timeout_s)
            self.playing = False
        call_all(self._job.workers, self._timeout_s, "check", SYSTEM, 0)
