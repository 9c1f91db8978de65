"""Starts coordinator, server and jobs, and interleaves their measurements."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sumpter import _native
from sumpter._failure import Failure
from sumpter.launch.attendant import free_port
from sumpter_lab.scaffold.jobs.processes import Process, first_error, inherited
from sumpter_lab.scaffold.jobs.remote import Remote, call_all, end_all
from sumpter_lab.scaffold.network import counters
from sumpter_lab.scaffold.progress import Bar
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.figures import STOLEN
from sumpter_lab.scaffold.signals import orderly
from sumpter_lab.tenants import site
from sumpter_lab.tenants.figures import (
    ALONE,
    BESIDE_GREEDY,
    GREEDY,
    TOGETHER,
    Window,
    document,
    select,
)
from sumpter_lab.tenants.job import Sample, Shape
from sumpter_lab.tenants.site import Site

# A loaded machine may take long to start twenty processes.
START_S = 300
# Stopping waits for what is in flight, which on a narrow link takes a while.
STOP_S = 300.0
# A window begins once connections have found their pace.
SETTLE_S = 1.0
# What the greedy job has of everything, as a multiple of what the others have.
GREED = 4
# A round that was disturbed is measured again; at most so many times as many rounds are.
_PATIENCE = 2
_SUMPTER = (sys.executable, "-P", "-m", "sumpter")


@dataclass(frozen=True)
class Spec:
    """One run."""

    weights: tuple[int, ...]  # of each job
    shape: Shape
    greedy: bool = False
    rate_mbit: float | None = None  # of the server's link; None for loopback
    lanes: int = 1
    seconds: float = 5.0
    rounds: int = 5
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def jobs(self) -> dict[str, int]:
        """The weight of each polite job, by name."""
        return {f"job-{index}": weight for index, weight in enumerate(self.weights)}

    @property
    def greedy_shape(self) -> Shape:
        own = self.shape
        return Shape(GREED * own.workers, GREED * own.tensor_bytes, GREED * own.in_flight)

    @property
    def memory_bytes(self) -> int:
        """What all jobs hold."""
        greedy = self.greedy_shape.memory_bytes if self.greedy else 0
        return len(self.weights) * self.shape.memory_bytes + greedy

    def phases(self, number: int) -> list[tuple[str, list[str]]]:
        """What runs in a round, and which jobs run then."""
        jobs = list(self.jobs)
        phases = [(ALONE, [jobs[number % len(jobs)]]), (TOGETHER, jobs)]
        # In the place of one of the others, so that there are as many jobs as before.
        return phases + ([(BESIDE_GREEDY, [*jobs[1:], GREEDY])] if self.greedy else [])

    def as_json(self) -> dict[str, Any]:
        greedy = asdict(self.greedy_shape) if self.greedy else None
        names = ("rate_mbit", "lanes", "seconds", "rounds", "settings")
        return {
            **{name: getattr(self, name) for name in names},
            "weights": list(self.weights),
            "shape": asdict(self.shape),
            "greedy_shape": greedy,
        }


def run(asked: Spec, folder: Path, bar: Bar) -> dict[str, Any]:
    """Measures; logs of the server and the coordinator are in `folder`.

    Leaves no process and no namespace behind, be it that it ends, fails or is interrupted.
    """
    about = record.environment()
    places = len(asked.weights) + int(asked.greedy)
    machines = (
        site.loopback(places) if asked.rate_mbit is None else site.shaped(places, asked.rate_mbit)
    )
    window_s = SETTLE_S + asked.seconds
    with orderly(), machines as where, _processes(asked, where, folder) as processes:
        bar.estimate(asked.rounds * len(asked.phases(0)) * window_s)
        bar.stage("starting the jobs", 0.0)
        with _jobs(asked, where, folder, processes.address) as jobs:
            try:
                windows = _measure(asked, jobs, bar)
            except Failure as failure:
                raise Failure(_explained(failure, processes.all)) from failure
    found = document(asked.jobs, asked.greedy, windows, asked.rounds)
    return {**asked.as_json(), **about, **found}


@dataclass(frozen=True)
class Processes:
    """The coordinator, where it listens, and the server."""

    address: str
    all: list[Process]


@contextlib.contextmanager
def _processes(asked: Spec, where: Site, folder: Path) -> Iterator[Processes]:
    """The coordinator and the server."""
    port = free_port()
    address = f"{where.coordinator.address}:{port}"
    _write_tenants(asked, folder)
    token = ("--token-file", str(folder / "cluster.token"))
    tenants = ("--tenants", str(folder / "tenants.toml"))
    variables = {**inherited(), "SUMPTER_MACHINE": "cpu", "SUMPTER_LOG": "info"}
    started: list[Process] = []
    try:
        for name, place, command in (
            ("coordinator", where.coordinator, ("coordinator", "--listen", address, *tenants)),
            ("server", where.server, ("serve", "--join", address, "--lanes", str(asked.lanes))),
        ):
            whole = place.command([*_SUMPTER, *command, *token])
            started.append(Process(name, whole, variables, folder / f"{name}.log"))
        yield Processes(address, started)
    finally:
        for process in started:
            process.end()


def _write_tenants(asked: Spec, folder: Path) -> None:
    """A token for each job, and the list of tenants."""
    weights = {**asked.jobs, **({GREEDY: 1} if asked.greedy else {})}
    for name in ("cluster", *weights):
        token = folder / f"{name}.token"
        token.touch(mode=0o600)
        token.write_text(_native.generate_token())
    entries = [
        f'[[job]]\nname = "{name}"\ntoken_file = "{name}.token"\nweight = {weight}\n'
        for name, weight in weights.items()
    ]
    (folder / "tenants.toml").write_text("\n".join(entries))


@contextlib.contextmanager
def _jobs(asked: Spec, where: Site, folder: Path, address: str) -> Iterator[dict[str, Remote]]:
    """The jobs, joined."""
    jobs: dict[str, Remote] = {}
    try:
        names = [*asked.jobs, *([GREEDY] if asked.greedy else [])]
        for name, machine in zip(names, where.jobs, strict=True):
            settings = {
                **asked.settings,
                "architecture": "ps",
                "coordinator": address,
                "job": name,
                "token_file": str(folder / f"{name}.token"),
                "servers": "1",
                "start_timeout_s": str(START_S),
            }
            shape = asked.greedy_shape if name == GREEDY else asked.shape
            jobs[name] = Remote(machine, "Job", settings, shape)
        call_all(list(jobs.values()), START_S, "join")
        yield jobs
    finally:
        end_all(list(jobs.values()))


def _measure(asked: Spec, jobs: dict[str, Remote], bar: Bar) -> list[Window]:
    windows: list[Window] = []
    for number in range(_PATIENCE * asked.rounds):
        for phase, names in asked.phases(number):
            bar.stage(f"{phase.replace('_', ' ')}, round {number + 1}", SETTLE_S + asked.seconds)
            running = {name: jobs[name] for name in names}
            windows.append(_window(phase, number, running, asked.seconds))
        best = select(windows, asked.rounds)
        if number + 1 >= asked.rounds and all(window.stolen <= STOLEN for window in best):
            break
    return windows


def _window(phase: str, number: int, jobs: dict[str, Remote], seconds: float) -> Window:
    remotes = list(jobs.values())
    call_all(remotes, START_S, "start")
    time.sleep(SETTLE_S)
    cores, before = counters.core_ticks(), _samples(remotes)
    time.sleep(seconds)
    after, cores = _samples(remotes), counters.core_ticks() - cores
    call_all(remotes, STOP_S, "stop")
    mbit = {
        name: (b.moved_bytes - a.moved_bytes) * 8e-6 / (b.at_s - a.at_s)
        for name, a, b in zip(jobs, before, after, strict=True)
    }
    return Window(phase, number, seconds, mbit, cores)


def _samples(remotes: Sequence[Remote]) -> list[Sample]:
    return call_all(remotes, STOP_S, "sample")


def _explained(failure: Failure, processes: Sequence[Process]) -> str:
    """What failed, and what the server and the coordinator said about it."""
    said = [
        f"{process.name}: {error}"
        for process in processes
        if (error := first_error(process.output()))
    ]
    return "; ".join([str(failure), *said])
