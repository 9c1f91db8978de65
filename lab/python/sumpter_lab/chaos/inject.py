"""Injects the faults, each at its time, into running processes."""

from __future__ import annotations

import heapq
import itertools
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sumpter._failure import Failure
from sumpter_lab.chaos import connections, faults
from sumpter_lab.chaos.faults import Kind, Planned
from sumpter_lab.chaos.job import TrainingJob
from sumpter_lab.scaffold.jobs.processes import Process
from sumpter_lab.scaffold.network.site import Place


@dataclass(frozen=True)
class Injected:
    """A fault that happened."""

    at_s: float  # since the first fault could have been
    kind: Kind
    victim: str
    duration_s: float


class Injector:
    """A queue of things to do: the faults, and what ends each of them."""

    def __init__(self, job: TrainingJob, planned: Iterable[Planned]) -> None:
        self.done: list[Injected] = []
        self._job = job
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, Callable[[float], object]]] = []
        self._planned = iter(planned)
        self._next()

    def until_next_s(self, now_s: float) -> float | None:
        """How long there is nothing to do; None if there is nothing any more."""
        return max(0.0, self._queue[0][0] - now_s) if self._queue else None

    def step(self, now_s: float) -> None:
        """Does what is due."""
        while self._queue and self._queue[0][0] <= now_s:
            heapq.heappop(self._queue)[2](now_s)

    def _at(self, at_s: float, action: Callable[[float], object]) -> None:
        heapq.heappush(self._queue, (at_s, next(self._numbers), action))

    def _next(self) -> None:
        if planned := next(self._planned, None):
            self._at(planned.at_s, lambda now_s: self._inject(planned, now_s))

    def _inject(self, planned: Planned, now_s: float) -> None:
        self._job.look()
        steady, free = self._job.steady(), self._job.free()
        kind = faults.resolve(planned.kind, len(steady), len(free))
        match kind:
            case Kind.KILL | Kind.DRAIN | Kind.STALL | Kind.FREEZE:
                victim = self._hurt(kind, steady[faults.pick(planned.choice, len(steady))], planned)
            case Kind.JOIN:
                victim = self._job.start_server(free[0]).name
            case Kind.CUT:
                victim = self._cut(planned)
            case Kind.UNPLUG | Kind.HUSH:
                victim = self._disturb(kind, planned)
            case Kind.COORDINATOR:
                victim = self._job.coordinator.name
                self._job.coordinator.end()
                self._job.gone.append(self._job.coordinator)
                self._at(now_s + planned.duration_s, lambda _: self._job.start_coordinator())
        self.done.append(Injected(now_s, kind, victim, planned.duration_s))
        self._next()

    def _hurt(self, kind: Kind, slot: int, planned: Planned) -> str:
        """What happens to one server."""
        process = self._job.servers[slot]
        ends_s = planned.at_s + planned.duration_s
        if kind is Kind.KILL:
            self._job.kill_server(slot)
        elif kind is Kind.DRAIN:
            self._job.drain(slot)
        else:
            self._job.stopped.add(slot)
            process.signal(signal.SIGSTOP)
            self._at(ends_s, lambda _: self._wake(slot, process))
        if kind in (Kind.KILL, Kind.DRAIN) and planned.twist < faults.COMES_BACK:
            self._at(ends_s, lambda _: self._fill())
        return process.name

    def _wake(self, slot: int, process: Process) -> None:
        process.signal(signal.SIGCONT)
        if self._job.servers.get(slot) is process:
            self._job.stopped.discard(slot)

    def _fill(self) -> None:
        self._job.look()
        if free := self._job.free():
            self._job.start_server(free[0])

    def _cut(self, planned: Planned) -> str:
        """Resets some of a process' connections."""
        process, _ = self._anyone(planned.choice)
        try:
            count = connections.reset(process.pid, self._job.spared_ports, planned.twist)
        except PermissionError as error:
            raise Failure(
                f"this system does not let us reset connections ({error}): leave 'cut' out of "
                "--faults"
            ) from error
        return f"{process.name} ({count})"

    def _disturb(self, kind: Kind, planned: Planned) -> str:
        """What happens to a machine's link."""
        process, place = self._anyone(planned.choice)
        ends_s = planned.at_s + planned.duration_s
        if kind is Kind.UNPLUG:
            place.plug(False)
            self._at(ends_s, lambda _: place.plug(True))
            return process.name
        outwards = planned.twist < 0.5
        place.hush(outwards, True)
        self._at(ends_s, lambda _: place.hush(outwards, False))
        return f"{process.name} ({'out' if outwards else 'in'})"

    def _anyone(self, choice: float) -> tuple[Process, Place]:
        """A worker or a server, and its machine."""
        workers = zip(self._job.workers, self._job.site.workers, strict=True)
        servers = (
            (self._job.servers[slot], self._job.site.servers[slot]) for slot in self._job.steady()
        )
        everyone = [*workers, *servers]
        return everyone[faults.pick(choice, len(everyone))]
