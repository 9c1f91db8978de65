"""Runs a job's processes to their end: all succeed, or all are ended.

Workers decide: when every worker has ended well, the servers are told to end. When any process
fails, the others get a moment to say what they lost, and then everything is ended.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

from sumpter.launch.output import Output
from sumpter.launch.process import Child, Guard, Role, start

# After a failure the others' own errors (which rank, which tensor) arrive within this time.
SETTLE_S = 3.0

# Between SIGTERM and SIGKILL; with what follows, Ctrl-C ends everything within two seconds.
GRACE_S = 1.5

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _Watch:
    """The processes of a job while they run."""

    running: dict[asyncio.Task[int], Child]
    worker_code: int = 0  # of the first worker that failed
    server_code: int = 0

    @property
    def workers_left(self) -> bool:
        return any(child.label.role == "worker" for child in self.running.values())

    @property
    def code(self) -> int:
        return self.worker_code or self.server_code


async def supervise(roles: list[Role], output: Output, guard: Guard) -> int:
    """Starts the roles in order and returns the job's exit code once all have ended."""
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[signal.Signals] = loop.create_future()
    again = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if interrupted.done():
            again.set()
        else:
            interrupted.set_result(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    watch = _Watch({})
    try:
        for role in roles:
            child = await start(role, output, guard)
            watch.running[asyncio.create_task(child.ended())] = child
        await _until_decided(watch, interrupted, output)
        if interrupted.done():
            number = interrupted.result()
            output.say(f"{number.name}: ending {len(watch.running)} processes")
            await _end_all(watch, again)
            return 128 + number
        await _settle(watch, interrupted, output)
        return watch.code
    finally:
        await _end_all(watch, again)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _until_decided(
    watch: _Watch, interrupted: asyncio.Future[signal.Signals], output: Output
) -> None:
    """Until no worker is left, a process has failed, or the user interrupts."""
    while watch.workers_left and not watch.code and not interrupted.done():
        done, _ = await asyncio.wait(
            {*watch.running, interrupted}, return_when=asyncio.FIRST_COMPLETED
        )
        await _reap(watch, done, output)


async def _settle(
    watch: _Watch, interrupted: asyncio.Future[signal.Signals], output: Output
) -> None:
    """After a failure: waits a little for the others to end by themselves."""
    if not watch.code or not watch.workers_left:
        return
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + SETTLE_S
    while watch.workers_left and not interrupted.done() and loop.time() < deadline_s:
        done, _ = await asyncio.wait(
            {*watch.running, interrupted},
            timeout=deadline_s - loop.time(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        await _reap(watch, done, output)


async def _reap(watch: _Watch, done: set[asyncio.Future], output: Output) -> None:
    """Takes note of the processes that have ended."""
    for task in [task for task in watch.running if task in done]:
        child, code = watch.running.pop(task), task.result()
        await child.drain()
        if code:
            output.say(f"{child.label} (pid {child.pid}) {_describe(code)}")
        if child.label.role == "worker":
            watch.worker_code = watch.worker_code or code
        else:
            watch.server_code = watch.server_code or code


async def _end_all(watch: _Watch, at_once: asyncio.Event) -> None:
    """SIGTERM, a grace, SIGKILL; a second interruption cuts the grace short."""
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
    await everyone
    await asyncio.gather(*(child.drain() for child in watch.running.values()))
    watch.running.clear()


def _describe(code: int) -> str:
    if code > 128:
        try:
            return f"was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            return f"ended with code {code}"
    return f"ended with code {code}"
