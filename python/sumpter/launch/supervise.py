"""Runs a job's processes to their end: all succeed, or all are ended.

Workers decide: when every worker has ended well, the servers are told to end. A server that is
killed is done without. When any other process fails, the others get a moment to say what they lost,
and then everything is ended. The workers of an elastic job are started again instead, until one has
ended well; one that keeps ending as soon as it was started has to wait longer each time.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from sumpter._failure import Failure
from sumpter._words import counted
from sumpter.launch.causes import KILLED, End, Failed, describe, last_error
from sumpter.launch.output import Label, Output
from sumpter.launch.place import Child

# After a failure the others get this time to end by themselves. Ranks of a job take longer to find
# out whom they lost: theirs is in `supervise`'s argument `settle_s`.
SETTLE_S = 3.0

# Between SIGTERM and SIGKILL; with what follows, Ctrl-C ends everything within two seconds.
GRACE_S = 1.5

# A process cannot outlive SIGKILL for long; what is not reported within this is not reachable.
UNREACHABLE_S = 3.0

# A worker that ends so soon after its start would do so again if it were started at once.
SOON_S = 10.0
# How long it then waits; the first time not at all, since what it died of may have been others'.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

# The exit code of a job whose worker could not be started again.
FAILED = 1

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


Start = Callable[[], Awaitable[Child]]


@dataclass(frozen=True)
class Elastic:
    """How a job goes on when workers fail."""

    min_workers: int
    restarts: int  # of each worker


@dataclass
class _Watch:
    """The processes of a job while they run."""

    elastic: Elastic | None
    running: dict[asyncio.Task[int], Child] = field(default_factory=dict)
    starts: dict[Label, Start] = field(default_factory=dict)
    failures: Counter[Label] = field(default_factory=Counter)
    # When each was started last, and how often in a row it has ended soon after.
    started_s: dict[Label, float] = field(default_factory=dict)
    soon: Counter[Label] = field(default_factory=Counter)
    # Those that wait to be started again; each task is over when it is time.
    paused: dict[asyncio.Task[None], Label] = field(default_factory=dict)
    worker_code: int = 0  # of the first worker whose failure counts
    server_code: int = 0
    failed: list[Failed] = field(default_factory=list)  # whose failures count
    # A worker has ended well: no other need be started again.
    succeeded: bool = False

    async def start(self, start: Start) -> None:
        child = await start()
        self.starts[child.label] = start
        self.started_s[child.label] = asyncio.get_running_loop().time()
        self.running[asyncio.create_task(child.ended())] = child

    def start_later(self, label: Label) -> float:
        """Has a process that has ended started again; in how many seconds."""
        lived_s = asyncio.get_running_loop().time() - self.started_s[label]
        self.soon[label] = self.soon[label] + 1 if lived_s < SOON_S else 0
        pause = pause_s(self.soon[label])
        self.paused[asyncio.create_task(asyncio.sleep(pause))] = label
        return pause

    def start_none(self) -> None:
        """No process waits to be started any more."""
        for pause in self.paused:
            pause.cancel()
        self.paused.clear()

    def note_failure(self, child: Child, code: int) -> None:
        self.failed.append(Failed(child.label, code, last_error(child.errors)))

    def go_on_without(self, lost: Failed) -> str:
        """A worker of an elastic job will not be started again; what that means, in words."""
        assert self.elastic is not None
        left = self.workers_left + len(self.paused)
        if left < self.elastic.min_workers:
            self.worker_code = self.worker_code or lost.code
            self.failed.append(lost)
            return "too few workers are left"
        return f"going on with {counted(left, 'worker')}"

    @property
    def workers_left(self) -> int:
        return sum(child.label.role == "worker" for child in self.running.values())

    @property
    def code(self) -> int:
        return self.worker_code or self.server_code


class Interruption:
    """The signals that end a job, while they are watched."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.first: asyncio.Future[signal.Signals] = self._loop.create_future()
        self.again = asyncio.Event()
        self._watched: list[signal.Signals] = []

    def __enter__(self) -> Interruption:
        # nohup has the end of the terminal ignored, and wants it to stay so.
        hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self._watched = [number for number in _SIGNALS if number != signal.SIGHUP or hung_up]
        for number in self._watched:
            self._loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in self._watched:
            self._loop.remove_signal_handler(number)

    @property
    def code(self) -> int:
        """The job's exit code once it has been interrupted."""
        return 128 + self.first.result()

    def _on_signal(self, number: signal.Signals) -> None:
        if self.first.done():
            self.again.set()
        else:
            self.first.set_result(number)


def pause_s(soon: int) -> float:
    """How long a process waits that has ended soon after its start so many times in a row."""
    if soon < 2:
        return 0.0
    # The exponent is bounded too: there is no float for two to the power of a large number.
    return min(FIRST_PAUSE_S * 2.0 ** min(soon - 2, 64), LONGEST_PAUSE_S)


async def supervise(
    starts: Sequence[Start],
    output: Output,
    interruption: Interruption,
    elastic: Elastic | None = None,
    started: str = "",
    settle_s: Callable[[], float] = lambda: SETTLE_S,
) -> End:
    """Starts the processes in order, says `started`, and returns once all have ended.

    `settle_s` is asked at the first failure: how long the others may take to end by themselves.
    """
    watch = _Watch(elastic)
    try:
        for start in starts:
            if not await _start(watch, start, interruption.first):
                break
        else:
            if started:
                output.say(started)
        await _until_decided(watch, interruption.first, output)
        if interruption.first.done():
            name = interruption.first.result().name
            output.say(f"{name}: ending {counted(len(watch.running), 'process', 'processes')}")
            return End(interruption.code, watch.failed, interrupted=True)
        await _settle(watch, interruption.first, output, settle_s)
        return End(watch.code, watch.failed)
    finally:
        await _end_all(watch, interruption.again)


async def _start(watch: _Watch, start: Start, interrupted: asyncio.Future[signal.Signals]) -> bool:
    """Starts a process; False if the user interrupts."""
    starting = asyncio.ensure_future(watch.start(start))
    await asyncio.wait({starting, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # What it may have started all the same ends with its place.
        starting.cancel()
        return False
    starting.result()
    return True


async def _until_decided(
    watch: _Watch, interrupted: asyncio.Future[signal.Signals], output: Output
) -> None:
    """Until no worker is left or to come, a process has failed, or the user interrupts."""
    while (watch.workers_left or watch.paused) and not watch.code and not interrupted.done():
        done, _ = await asyncio.wait(
            {*watch.running, *watch.paused, interrupted}, return_when=asyncio.FIRST_COMPLETED
        )
        _reap(watch, done, output)
        for pause in [pause for pause in watch.paused if pause in done]:
            label = watch.paused.pop(pause)
            try:
                await _start(watch, watch.starts[label], interrupted)
            except Failure as error:
                lost = Failed(label, error.exit_code or FAILED, str(error))
                said = watch.go_on_without(lost)
                output.say(f"{label} cannot be started again: {error}; {said}")


async def _settle(
    watch: _Watch,
    interrupted: asyncio.Future[signal.Signals],
    output: Output,
    settle_s: Callable[[], float],
) -> None:
    """After a failure: waits a little for the others to end by themselves."""
    if not watch.code or not watch.workers_left:
        return
    loop = asyncio.get_running_loop()
    allowed_s = settle_s()
    deadline_s = loop.time() + allowed_s
    while watch.workers_left and not interrupted.done() and loop.time() < deadline_s:
        done, _ = await asyncio.wait(
            {*watch.running, interrupted},
            timeout=deadline_s - loop.time(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        _reap(watch, done, output)
    for child in watch.running.values():
        if child.label.role == "worker" and not interrupted.done():
            output.say(f"{child.label} has not ended by itself {allowed_s:g} s after the failure")


def _reap(watch: _Watch, done: set[asyncio.Future], output: Output) -> None:
    """Takes note of the processes that have ended, and has some started again."""
    for task in [task for task in watch.running if task in done]:
        child, code = watch.running.pop(task), task.result()
        said = f"{child.label} ({child.where}) {describe(code)}"
        if child.label.role != "worker" and code > KILLED:
            said += "; the job goes on without it"
        elif child.label.role != "worker":
            watch.server_code = watch.server_code or code
            if code:
                watch.note_failure(child, code)
        elif not code:
            watch.succeeded = True
            watch.start_none()
        elif watch.elastic is not None and not watch.succeeded:
            watch.failures[child.label] += 1
            tries, limit = watch.failures[child.label], watch.elastic.restarts
            if tries <= limit and not child.place.lost:
                pause = watch.start_later(child.label)
                when = f" in {pause:g} s" if pause else ""
                said += f"; starting it again{when} ({tries} of {limit})"
            else:
                lost = Failed(child.label, code, last_error(child.errors))
                said += f"; {watch.go_on_without(lost)}"
        else:
            watch.worker_code = watch.worker_code or code
            watch.note_failure(child, code)
        if code:
            output.say(said)


async def _end_all(watch: _Watch, at_once: asyncio.Event) -> None:
    """SIGTERM, a grace, SIGKILL; a second interruption cuts the grace short."""
    watch.start_none()
    if not watch.running:
        return
    tasks = set(watch.running)
    for child in watch.running.values():
        child.signal(signal.SIGTERM)
    impatience = asyncio.create_task(at_once.wait())
    everyone = asyncio.ensure_future(asyncio.wait(tasks))
    await asyncio.wait({impatience, everyone}, timeout=GRACE_S, return_when=asyncio.FIRST_COMPLETED)
    impatience.cancel()
    for child in watch.running.values():
        child.signal(signal.SIGKILL)
    done, late = await asyncio.wait(tasks, timeout=UNREACHABLE_S)
    for task in late:
        watch.running[task].place.drop()
    await everyone
    watch.running.clear()
