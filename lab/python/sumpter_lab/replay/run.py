"""`sumpter bench replay`: the cluster, the turns of each cell, and its figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from sumpter_lab.replay import spec
from sumpter_lab.replay.script import Script
from sumpter_lab.replay.spec import Point, Spec
from sumpter_lab.replay.variants import BY_NAME, DDP, OPTIMIZING, UNBOUNDED_CREDIT
from sumpter_lab.scaffold import experiment
from sumpter_lab.scaffold.experiment import Progress, measured_cluster
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.emulated import EmulatedJob, Round, emulated_job
from sumpter_lab.scaffold.jobs.remote import call_all
from sumpter_lab.scaffold.network import counters
from sumpter_lab.scaffold.network.cluster import Cluster, Machine
from sumpter_lab.scaffold.network.tournament import Links
from sumpter_lab.scaffold.optimum import Optimum, optimum
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.figures import quartiles, ratio


@dataclass
class Played:
    """What one system did in all its turns."""

    periods_s: list[list[float]] = field(default_factory=list)  # by turn, the mean of all ranks
    rounds: list[Round] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)  # of an optimizer in the workers


def run(asked: Spec, progress: Progress) -> Generator[dict[str, Any], None, None]:
    """Builds the cluster, measures its links and yields the figures of each cell.

    The cluster is removed when the generator ends or is closed, and by SIGINT, SIGTERM or SIGHUP.
    """
    spec.check(asked)
    about = record.environment()
    remote.preload("sumpter_lab.replay.rank", *(["torch._dynamo"] if DDP in asked.systems else []))
    wanted = asked.cluster()
    with measured_cluster(
        wanted.gpu_rates_mbit,
        wanted.cpu_rates_mbit,
        progress,
        lambda machines, links: sum(
            _Cell(asked, machines, links, point).duration_s() for point in asked.cells()
        ),
    ) as (machines, links):
        for point in asked.cells():
            cell = _Cell(asked, machines, links, point)
            progress.stage(f"{point.workers} workers, {point.servers} servers", cell.duration_s())
            yield {**cell.run(progress.advance), **about}


class _Cell:
    """One number of workers and of servers, one ratio, one combination of settings."""

    def __init__(self, asked: Spec, machines: Cluster, links: Links, point: Point) -> None:
        self._asked, self._point = asked, point
        self._gpu, self._cpu = machines.gpu[: point.workers], machines.cpu[: point.servers]
        self._links = links.only((*self._gpu, *self._cpu))
        self._times: Optimum = optimum(self._gpu, self._cpu, asked.sized.bytes, self._links)
        self._script: Script = asked.script(point.ratio, self._times.allreduce_seconds)

    def duration_s(self) -> float:
        """About how long the cell takes."""
        each_s = {
            name: max(self._script.compute_s, self._times.seconds) * 1.2
            for name in self._asked.systems
        }
        if DDP in each_s:
            each_s[DDP] = self._script.compute_s + self._times.allreduce_seconds
        return (
            self._asked.turns * (self._asked.iterations + 1) * sum(each_s.values())
            + experiment.START_S
        )

    def run(self, advance: Callable[[float], None]) -> dict[str, Any]:
        """All turns, one system after the other in each."""
        asked, systems = self._asked, self._asked.systems
        slowest_s = self._script.compute_s + self._times.allreduce_seconds
        timeout_s = experiment.timeout_s(slowest_s * (asked.iterations + 1))
        played = {system: Played() for system in systems}
        with ExitStack() as running:
            by_system = self._jobs(running)
            for number in range(asked.turns):
                for system in systems:
                    playing = by_system[system]
                    played[system].rounds.append(playing.round(system, number, timeout_s))
                    by_rank = call_all(playing.workers, timeout_s, "periods", system)
                    means = [statistics.fmean(same) for same in zip(*by_rank, strict=True)]
                    played[system].periods_s.append(means)
                    for steps in call_all(playing.workers, timeout_s, "steps", system):
                        played[system].steps_s += steps
                    advance(1 / (asked.turns * len(systems)))
        return self._figures(played)

    def _jobs(self, running: ExitStack) -> dict[str, EmulatedJob]:
        """The job that plays each system. A job has one credit, so there may be two."""
        settings = {**self._asked.settings_at(self._point), "lanes": "1"}
        bounded = [
            name
            for name in self._asked.systems
            if name in OPTIMIZING or (name in BY_NAME and BY_NAME[name].credit)
        ]
        unbounded = [name for name in self._asked.systems if name not in bounded]
        by_system: dict[str, EmulatedJob] = {}
        for systems, credit in (
            (unbounded, {"credit_bytes": UNBOUNDED_CREDIT}),
            (bounded, {}),
        ):
            if systems:
                load = (self._script, self._asked.iterations)
                one = running.enter_context(
                    emulated_job(
                        self._gpu, self._cpu, settings | credit, {}, load, systems, "Player"
                    )
                )
                by_system |= dict.fromkeys(systems, one)
        return by_system

    def _figures(self, played: dict[str, Played]) -> dict[str, Any]:
        asked, profile, script = self._asked, self._asked.profile, self._script
        bound_s = max(script.compute_s, self._times.seconds)
        slowdown = asked.slowdown(self._point.ratio, self._times.allreduce_seconds)
        return {
            "profile": profile.name,
            "source": profile.source,
            "device": profile.device,
            "batch_size": profile.batch_size,
            "workers": len(self._gpu),
            "servers": len(self._cpu),
            "bandwidth_mbps": asked.bandwidth_mbps,
            "link_goodput_mbit": self._links.median_mbit,
            "scale": asked.scale,
            "slowdown": slowdown,
            "stands_for_gbps": asked.bandwidth_mbps * asked.scale * slowdown / 1000,
            "bytes": script.bytes,
            "tensors": len(script.shapes),
            "compute_seconds": script.compute_s,
            "optimum_seconds": self._times.seconds,
            "allreduce_optimum_seconds": self._times.allreduce_seconds,
            "ratio": self._times.allreduce_seconds / script.compute_s,
            "bound_seconds": bound_s,
            "settings": asked.settings_at(self._point),
            "grid": self._point.settings,
            "iterations": asked.iterations,
            "turns": asked.turns,
            "systems": {
                system: _system(done, bound_s, asked.iterations, self._gpu)
                for system, done in played.items()
            },
        }


def _system(
    done: Played, bound_s: float, iterations: int, gpu: Sequence[Machine]
) -> dict[str, Any]:
    """The figures of one system in one cell."""
    every = sorted(period for turn in done.periods_s for period in turn)
    low, middle, high = quartiles(every)
    cores = sum((item.cores for item in done.rounds), counters.NO_TICKS)
    moved = sum(item.links[machine.name].sent_bytes for item in done.rounds for machine in gpu)
    everywhere = sum(link.sent_bytes for item in done.rounds for link in item.links.values())
    cpu_s = [item.worker_cpu_s + item.server_cpu_s for item in done.rounds]
    return {
        "iterations_per_s": 1 / middle,
        "iterations_per_s_quartiles": [1 / high, 1 / low],
        "seconds": middle,
        "share_of_bound": bound_s / middle,
        # Each turn has an iteration more, before those that count.
        "sent_bytes_by_worker": moved / len(gpu) / len(done.rounds) / (iterations + 1),
        "sent_bytes_by_all": everywhere / len(done.rounds) / (iterations + 1),
        "cpu_seconds_by_all": statistics.median(cpu_s) / (iterations + 1),
        "step_seconds": statistics.median(done.steps_s) if done.steps_s else None,
        "worker_cpu_seconds": statistics.median(item.worker_cpu_s for item in done.rounds),
        "cores_idle": ratio(cores.idle, cores.total),
        "cores_steal": ratio(cores.steal, cores.total),
        "periods_s": done.periods_s,
    }
