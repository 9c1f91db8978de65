"""One child process of a job: started in a group of its own, its output pumped line by line."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sumpter.cli.errors import Failure
from sumpter.launch.lines import LineSplitter
from sumpter.launch.output import Label, Output

_READ_BYTES = 64 * 1024

# What a process leaves behind may hold its output open after it has ended; nobody waits longer
# than this for its last words.
_DRAIN_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Role:
    """What to start, and as whom."""

    label: Label
    command: Sequence[str]
    environment: dict[str, str]


class Guard:
    """A process that ends the others should the launcher be killed; see `guard.py`."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("guard.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Kills what is still watched."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()


class Child:
    """A running child process, the leader of its group."""

    def __init__(
        self, label: Label, process: asyncio.subprocess.Process, output: Output, guard: Guard
    ) -> None:
        self.label = label
        self.pid = process.pid
        self._process = process
        self._guard = guard
        assert process.stdout is not None and process.stderr is not None
        self._pumps = [
            asyncio.create_task(_pump(process.stdout, label, False, output)),
            asyncio.create_task(_pump(process.stderr, label, True, output)),
        ]

    async def ended(self) -> int:
        """Waits for the end; the exit code as a shell reports it (128 + signal)."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def drain(self) -> None:
        """After the end: shows the rest of the output and ends what the process left behind."""
        await asyncio.wait(self._pumps, timeout=_DRAIN_TIMEOUT_S)
        self.signal(signal.SIGKILL)
        self._guard.forget(self.pid)
        for pump in self._pumps:
            pump.cancel()

    def signal(self, number: signal.Signals) -> None:
        """Signals the whole group; no error when it has ended."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return


async def start(role: Role, output: Output, guard: Guard) -> Child:
    """Starts a role; the guard knows of it before anything else can happen."""
    try:
        process = await asyncio.create_subprocess_exec(
            *role.command,
            env=role.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise Failure(f"cannot run '{role.command[0]}': {error.strerror}") from error
    guard.watch(process.pid)
    return Child(role.label, process, output, guard)


async def _pump(reader: asyncio.StreamReader, label: Label, is_error: bool, output: Output) -> None:
    splitter = LineSplitter()
    while data := await reader.read(_READ_BYTES):
        output.log(label, data)
        output.lines(label, is_error, splitter.feed(data, time.monotonic()))
    output.lines(label, is_error, splitter.finish())
