"""The whole: a job with faults, then the same job without, and what came of both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sumpter import _native
from sumpter._failure import UsageError
from sumpter_lab.chaos import faults, outcome, site
from sumpter_lab.chaos.faults import Kind
from sumpter_lab.chaos.inject import Injected, Injector
from sumpter_lab.chaos.job import TrainingJob
from sumpter_lab.chaos.outcome import Run
from sumpter_lab.chaos.site import Site
from sumpter_lab.chaos.watch import Rounds, Views
from sumpter_lab.scaffold.jobs.processes import first_error
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.signals import orderly

# Without a round for so long, a job has hung.
HANG_S = 60.0
# Before the first round: imports on a loaded machine.
START_S = 300.0
# When one rank has failed, the others have this long to say what they saw.
LAST_WORDS_S = 15.0
# So many rounds, and training has begun.
_FIRST_ROUNDS = 3
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Spec:
    """One chaos run."""

    command: tuple[str, ...]
    seconds: float = 30.0
    seed: int = 1
    workers: int = 4
    servers: int = 3
    slots: int = 4
    local: bool = False
    rate_mbit: float = 200.0
    kinds: tuple[Kind, ...] = ()
    reference_servers: int = 0
    settings: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        names = ("seconds", "seed", "workers", "servers", "slots", "local", "reference_servers")
        return {
            "command": list(self.command),
            **{name: getattr(self, name) for name in names},
            "rate_mbit": None if self.local else self.rate_mbit,
            "settings": self.settings,
        }


Tell = Callable[[str], None]


def run(asked: Spec, folder: Path, tell: Tell) -> dict[str, Any]:
    """Runs both jobs and returns what they showed; logs are in `folder`.

    Leaves no process and no namespace behind, be it that it ends, fails or is interrupted.
    """
    about = record.environment()
    with orderly(), _site(asked) as machines:
        tell(f"training for {asked.seconds:g} s with faults")
        length = ("--seconds", f"{asked.seconds:g}")
        disturbed = _train(asked, machines, folder / "disturbed", length, asked.servers, True, tell)
        quiet = Run()
        ended = next((item for item in disturbed.trained if item), None)
        if ended is not None and not disturbed.problems:
            tell(f"training the same {ended.epochs} epochs without faults")
            length = ("--epochs", str(ended.epochs))
            count = asked.reference_servers
            quiet = _train(asked, machines, folder / "undisturbed", length, count, False, tell)
    return outcome.document(asked.as_json(), disturbed, quiet, about)


def kinds_of(names: Sequence[str] | None, local: bool, restarts: bool) -> tuple[Kind, ...]:
    """The kinds of faults that are asked for; all that can be there by default."""
    possible = (faults.LOCAL if local else faults.EMULATED) + (Kind.COORDINATOR,)
    if names is None:
        return tuple(kind for kind in possible if restarts or kind is not Kind.COORDINATOR)
    if names == ["none"]:
        return ()
    unknown = [name for name in names if name not in set(possible)]
    if unknown:
        where = " with --local" if local else ""
        listed = ", ".join(possible)
        raise UsageError(f"--faults: no '{unknown[0]}'{where}; choose from {listed}, or none")
    return tuple(dict.fromkeys(Kind(name) for name in names))


def server_timeout_s(settings: dict[str, str]) -> float:
    """After what silence a server counts as dead in such a job."""
    defaults = {row["name"]: row["default"] for row in _native.settings()}
    return float(settings.get("server_timeout_s") or defaults.get("server_timeout_s", "2"))


def _site(asked: Spec) -> contextlib.AbstractContextManager[Site]:
    if asked.local:
        return site.local(asked.workers, asked.slots)
    return site.emulated(asked.workers, asked.slots, asked.rate_mbit)


def _train(
    asked: Spec,
    machines: Site,
    folder: Path,
    length: tuple[str, str],
    servers: int,
    disturb: bool,
    tell: Tell,
) -> Run:
    folder.mkdir()
    timeline = folder / "rounds"
    command = (*asked.command, "--digest", *length)
    settings = {"log": "info", **asked.settings, "deterministic": "true"}
    with (
        Rounds(timeline) as rounds,
        _running(machines, folder, settings, command, servers, timeline) as job,
    ):
        status = {"coordinator": job.address, "token": job.token}
        with Views(machines.coordinator, status) as views:
            done = Run()
            if _begun(job, rounds, done):
                planned = faults.schedule(
                    asked.seed,
                    asked.seconds if disturb else 0.0,
                    asked.kinds,
                    server_timeout_s(asked.settings),
                )
                _follow(job, rounds, Injector(job, planned), done, tell)
        done.plan_epochs, done.helpers = views.epoch, dict(views.helpers)
        done.problems += job.problems
        done.trained = [outcome.trained(worker.output()) for worker in job.workers]
        if done.problems:
            done.errors = _errors(job)
    done.rounds = rounds.seen
    return done


@contextlib.contextmanager
def _running(*arguments: Any) -> Iterator[TrainingJob]:
    job = TrainingJob(*arguments)
    try:
        yield job
    finally:
        job.end()


def _begun(job: TrainingJob, rounds: Rounds, done: Run) -> bool:
    """Waits for the first rounds; says why if they do not come."""
    deadline_s = time.monotonic() + START_S
    while len(rounds.seen) < _FIRST_ROUNDS:
        time.sleep(_LOOK_EVERY_S)
        failed = _failed(job)
        if failed or time.monotonic() > deadline_s:
            done.problems.append(failed or f"training had not begun after {START_S:.0f} s")
            _last_words(job)
            return False
    return True


def _follow(job: TrainingJob, rounds: Rounds, injector: Injector, done: Run, tell: Tell) -> None:
    """Injects faults until the job ends, well or badly."""
    done.began_s = began_s = time.monotonic()
    done.faults = injector.done
    told, problem = 0, ""
    while any(worker.code is None for worker in job.workers):
        now_s = time.monotonic()
        injector.step(now_s - began_s)
        for fault in injector.done[told:]:
            tell(_line(fault))
        told = len(injector.done)
        job.look()
        problem = _failed(job)
        if not problem and now_s - rounds.seen[-1].at_s > HANG_S:
            problem = f"no round ended for {HANG_S:.0f} s"
        if problem:
            break
        time.sleep(min(_LOOK_EVERY_S, injector.until_next_s(time.monotonic() - began_s) or 0.02))
    else:
        problem = _failed(job)
    done.seconds = time.monotonic() - began_s
    if problem:
        done.problems.append(f"at {done.seconds:.2f} s: {problem}")
        _last_words(job)


def _failed(job: TrainingJob) -> str:
    """The first worker that ended badly, and what it said; empty if none did."""
    for worker in job.workers:
        if worker.code:
            said = first_error(worker.output()) or "no error in its log"
            return f"{worker.name} ended with exit code {worker.code}: {said}"
    if job.coordinator.code is not None and job.coordinator not in job.gone:
        said = first_error(job.coordinator.output()) or "no error in its log"
        return f"the coordinator ended with exit code {job.coordinator.code}: {said}"
    return ""


def _errors(job: TrainingJob) -> dict[str, str]:
    """How each process ended, and the first error in its log, by the log's name."""
    found = {}
    for process in job.processes():
        said = first_error(process.output())
        if said or process.code is not None:
            found[process.log.stem] = f"exit code {process.code}; {said or '-'}"
    return found


def _last_words(job: TrainingJob) -> None:
    deadline_s = time.monotonic() + LAST_WORDS_S
    while time.monotonic() < deadline_s and any(worker.code is None for worker in job.workers):
        time.sleep(_LOOK_EVERY_S)


def _line(fault: Injected) -> str:
    return f"{fault.at_s:8.2f} s  {fault.kind:<11} {fault.victim}"
