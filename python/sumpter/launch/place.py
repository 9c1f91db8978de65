"""A machine where processes of the job run, and the attendant there that starts and ends them.

This machine and those behind ssh differ only in the command that starts the attendant.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sumpter._failure import Failure
from sumpter.launch.attendant import HEADER, PREAMBLE
from sumpter.launch.causes import KEPT_COLUMNS, KEPT_LINES
from sumpter.launch.lines import LineSplitter
from sumpter.launch.output import Label, Output
from sumpter.launch.remote import RemoteShell, attendant_source, loader, unreachable

_READ_BYTES = 64 * 1024

# A shell's codes for a command that is not there, and ssh's for a connection that broke.
NOT_FOUND = 127
_LOST = 255

# How long an attendant may take to end, with time for its own grace and drain.
_CLOSE_TIMEOUT_S = 5.0

HERE = ""


@dataclass(frozen=True)
class Role:
    """What to start, where, and with which variables; one that is None is removed."""

    label: Label
    host: str
    command: Sequence[str]
    defaults: Mapping[str, str]
    variables: Mapping[str, str | None]


@dataclass(frozen=True)
class Facts:
    """What an attendant says of its machine."""

    cores: int
    host_name: str
    port: int  # free a moment ago
    client: str  # the launcher's address as ssh sees it there, "" if not by ssh
    server: str  # the machine's address in the same words


@dataclass(frozen=True)
class Access:
    """How to get to all machines, and what to find there."""

    shell: RemoteShell
    python: str
    folder: str
    requested: Mapping[str, str]  # variables that the user names, for every machine
    passed: Mapping[str, str]  # these and more, for machines that do not inherit this one's
    start_timeout_s: float


class Child:
    """A process of the job, wherever it runs."""

    def __init__(self, role: Role, index: int, place: Place, output: Output) -> None:
        self.label = role.label
        self.place = place
        self._command = role.command[0]
        self._index = index
        self._output = output
        self._splitters = {False: LineSplitter(), True: LineSplitter()}
        # The end of its standard error, for the cause of a failure.
        self.errors: deque[str] = deque(maxlen=KEPT_LINES)
        loop = asyncio.get_running_loop()
        self.pid: asyncio.Future[int] = loop.create_future()
        self._code: asyncio.Future[int] = loop.create_future()

    @property
    def where(self) -> str:
        pid = self.pid.result()
        return f"pid {pid}" if self.place.host == HERE else f"pid {pid} on {self.place.host}"

    async def ended(self) -> int:
        """Waits for the end and the last output; the code as a shell reports it (128 + signal)."""
        return await asyncio.shield(self._code)

    def signal(self, number: signal.Signals) -> None:
        """Signals the whole group; no error when it has ended."""
        self.place.order(do="signal", index=self._index, number=int(number))

    def take(self, kind: bytes, payload: bytes) -> None:
        """A frame about this process."""
        if kind in (b"s", b"f") and self.pid.done():
            # There is no waiter for the start any more.
            return
        if kind == b"s":
            self.pid.set_result(int(payload))
        elif kind == b"f":
            where = "" if self.place.host == HERE else f" on {self.place.host}"
            error = Failure(f"cannot run '{self._command}'{where}: {payload.decode()}")
            error.exit_code = NOT_FOUND
            self.pid.set_exception(error)
        elif kind == b"x":
            for is_error, splitter in self._splitters.items():
                self._show(is_error, splitter.finish())
            self._code.set_result(int(payload))
        else:
            is_error = kind == b"e"
            self._output.log(self.label, payload)
            lines = self._splitters[is_error].feed(payload, time.monotonic())
            self._show(is_error, lines)

    def _show(self, is_error: bool, lines: list[bytes]) -> None:
        self._output.lines(self.label, is_error, lines)
        if is_error:
            self.errors.extend(line[:KEPT_COLUMNS].decode(errors="replace") for line in lines)

    def lose(self) -> None:
        """The attendant is gone, and by its own rule the process ends with it."""
        if not self.pid.done():
            self.pid.set_exception(Failure(f"lost {self.place.name} while starting {self.label}"))
        if not self._code.done():
            self._code.set_result(_LOST)


class Place:
    """An open connection to the attendant of one machine."""

    def __init__(self, host: str, process: asyncio.subprocess.Process, output: Output) -> None:
        self.host = host
        self.name = host or "this machine's attendant"
        self.facts: asyncio.Future[Facts] = asyncio.get_running_loop().create_future()
        self._process = process
        self._output = output
        self._children: list[Child] = []
        self._words: list[str] = []
        self._closing = False
        self.lost = False
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._overhear())]

    def order(self, **order: object) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def start(self, role: Role) -> Child:
        """Starts a role; raises Failure if its command cannot be run, or the machine is lost."""
        if self.lost:
            raise Failure(f"lost {self.name}")
        child = Child(role, len(self._children), self, self._output)
        self._children.append(child)
        self.order(
            do="start",
            index=len(self._children) - 1,
            command=list(role.command),
            defaults=dict(role.defaults),
            variables=dict(role.variables),
        )
        await child.pid
        return child

    async def close(self) -> None:
        """Lets the attendant go; it ends whatever still runs."""
        self._closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_TIMEOUT_S)
        except TimeoutError:
            self.drop()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()

    def drop(self) -> None:
        """Cuts the connection to a machine that does not answer."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def last_words(self) -> tuple[int, list[str]]:
        """The remote shell's exit code and what it said, once it has ended."""
        code = await self._process.wait()
        await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_S)
        return code, self._words

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        reader = self._process.stdout
        try:
            await reader.readuntil(PREAMBLE)
            while True:
                header = await reader.readexactly(struct.calcsize(HEADER))
                kind, index, length = struct.unpack(HEADER, header)
                payload = await reader.readexactly(length)
                if kind == b"r":
                    self._introduce(json.loads(payload))
                elif index < len(self._children):
                    self._children[index].take(kind, payload)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            if self._closing:
                self.facts.cancel()
            elif not self.facts.done():
                self.facts.set_exception(ConnectionError())
            elif self._children:
                self._output.say(f"lost {self.name}")
        finally:
            # Nothing reads what the attendant says any more, for whatever reason.
            self.lost = True
            for child in self._children:
                child.lose()

    def _introduce(self, said: dict[str, object]) -> None:
        problem = said.pop("problem")
        if problem:
            self.facts.set_exception(Failure(f"{self.name}: {problem}"))
        else:
            self.facts.set_result(Facts(**said))  # type: ignore[arg-type]

    async def _overhear(self) -> None:
        """What the remote shell itself says: kept before the attendant answers, shown after."""
        assert self._process.stderr is not None
        splitter = LineSplitter()
        while data := await self._process.stderr.read(_READ_BYTES):
            self._note(splitter.feed(data, time.monotonic()))
        self._note(splitter.finish())

    def _note(self, lines: list[bytes]) -> None:
        answered = self.facts.done() and not self.facts.exception()
        for text in (line.decode(errors="replace").strip() for line in lines):
            if answered:
                self._output.say(f"{self.name}: {text}")
            elif text:
                self._words.append(text)


async def open_places(hosts: Sequence[str], access: Access, output: Output) -> dict[str, Place]:
    """Attendants on all hosts, reached at once; Failure says what is wrong with which host."""
    opened = await asyncio.gather(
        *(open_place(host, access, output) for host in hosts), return_exceptions=True
    )
    failures = [result for result in opened if isinstance(result, BaseException)]
    places = [result for result in opened if isinstance(result, Place)]
    if failures:
        await asyncio.gather(*(place.close() for place in places))
        known = [failure for failure in failures if isinstance(failure, Failure)]
        if len(known) < len(failures):
            raise next(failure for failure in failures if not isinstance(failure, Failure))
        raise Failure("; ".join(str(failure) for failure in known))
    return {place.host: place for place in places}


async def open_place(host: str, access: Access, output: Output) -> Place:
    """An attendant on one host; Failure says what is wrong with it."""
    here = host == HERE
    python = access.python
    command = loader(python) if here else access.shell.arguments(host, python)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise Failure(f"cannot run '{command[0]}': {error.strerror}") from error
    place = Place(host, process, output)
    assert process.stdin is not None
    process.stdin.write(attendant_source())
    place.order(
        do="hello",
        folder=access.folder,
        environment=dict(access.requested if here else access.passed),
        package=None if here else "sumpter",
    )
    try:
        await asyncio.wait_for(asyncio.shield(place.facts), access.start_timeout_s)
    except TimeoutError:
        place.drop()
        await place.close()
        limit = f"{access.start_timeout_s:g} s"
        raise Failure(f"{place.name} did not answer within {limit} (--start-timeout)") from None
    except ConnectionError:
        code, words = await place.last_words()
        await place.close()
        raise unreachable(place.name, python, code, words) from None
    except BaseException:
        place.drop()
        await place.close()
        raise
    return place
