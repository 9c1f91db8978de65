"""Runs the checks on all machines and between them, over the launcher's attendants.

Nothing of it stays: what was started ends with its attendant, and that with this process. A machine
that does not answer becomes a finding, and the others are examined all the same.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from rich.console import Console

from sumpter import _native
from sumpter._failure import Failure
from sumpter._words import counted
from sumpter.doctor.finding import Finding, error
from sumpter.doctor.pairs import findings as judging
from sumpter.doctor.pairs.agent import MOST_STREAMS
from sumpter.doctor.pairs.findings import Machine, Pair, Way
from sumpter.launch.output import Label, Output
from sumpter.launch.place import HERE, Access, Child, Place, Role, open_place
from sumpter.launch.supervise import Interruption

# Up to so many pairs are measured one after the other; more in rounds of pairs that have no machine
# in common, of which there are at most so many.
ONE_BY_ONE = 10
MOST_ROUNDS = 16

# Each of three measurements of speed.
SPEED_S = 1.0
# What a round takes where all is well: three measurements, and the start of a Python.
ROUND_S = 6.0

# A first import of torch from a cold disk and the sums of the self-test.
_DOCTOR_S = 300.0
# A first import from a cold disk.
_LISTEN_S = 60.0
# All the limits of one measurement in a row: connecting, datagrams, three stalled transfers.
_MEASURE_S = 90.0
# A listener whose launcher and attendant were both killed by force ends by itself.
_LIFETIME_S = 3600.0

_AGENT = ("-P", "-m", "sumpter.doctor.pairs.agent")
_CHECKS = ("-P", "-m", "sumpter", "doctor", "--json")


@dataclass(frozen=True)
class Target:
    """A machine to examine: its host for the remote shell and the settings that it alone has."""

    host: str
    settings: Mapping[str, str] = field(default_factory=dict)  # variables


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    targets: Sequence[Target]
    access: Access
    options: Sequence[str] = ()  # of `sumpter doctor` on each machine
    coordinator: str = ""  # its host, if one is given


@dataclass
class Host:
    """One machine of the report."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    machine: Machine | None = None

    @property
    def title(self) -> str:
        """Its name, and its address where that is not the name."""
        address = self.machine.address if self.machine else self.name
        return self.name if address == self.name else f"{self.name}, {address}"


@dataclass
class Report:
    """What was found."""

    hosts: list[Host]
    pairs: list[Pair] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)  # about all machines together
    unmeasured: int = 0  # pairs that were left out

    def all_findings(self) -> list[Finding]:
        of_hosts = [finding for host in self.hosts for finding in host.findings]
        of_pairs = [finding for pair in self.pairs for finding in pair.findings]
        return [*of_hosts, *of_pairs, *self.findings]


@dataclass(frozen=True)
class Listeners:
    """Who hears how far the examination is."""

    say: Callable[[str], None]
    begin: Callable[[int], None]  # so many steps
    step: Callable[[str], None]  # one is done; what comes next


def rounds(
    names: Sequence[str], one_by_one: int = ONE_BY_ONE, most: int = MOST_ROUNDS
) -> list[list[tuple[str, str]]]:
    """Which pairs are measured at the same time: none has a machine of another.

    All pairs for a few machines, one after the other. For many the rounds of a tournament, in which
    each machine meets another in every round, and of those the first `most`.
    """
    pairs = list(combinations(names, 2))
    if len(pairs) <= one_by_one:
        return [[pair] for pair in pairs]
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(min(len(seats) - 1, most)):
        half = len(seats) // 2
        meetings = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in meetings if a is not None and b is not None])
        # The first stays, the others move on by one.
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def examine(request: Request, listeners: Listeners) -> Report | int:
    """The report; after an interruption the exit code instead."""
    return asyncio.run(_interruptible(request, listeners))


async def _interruptible(request: Request, listeners: Listeners) -> Report | int:
    with Interruption() as interruption:
        examining = asyncio.create_task(_examine(request, listeners))
        await asyncio.wait({examining, interruption.first}, return_when=asyncio.FIRST_COMPLETED)
        if examining.done():
            return examining.result()
        examining.cancel()
        await asyncio.wait({examining})
        return interruption.code


class _Collected(Output):
    """Keeps what processes print instead of showing it."""

    def __init__(self) -> None:
        super().__init__(Console(stderr=True), None)
        self.out: dict[Label, list[bytes]] = {}
        self.first: dict[Label, asyncio.Event] = {}
        self._started = 0

    def label(self, role: str) -> Label:
        """One that no other process has."""
        self._started += 1
        label = Label(role, self._started)
        self.out[label] = []
        self.first[label] = asyncio.Event()
        return label

    def lines(self, label: Label, is_error: bool, lines: list[bytes]) -> None:
        if lines and not is_error:
            self.out[label] += lines
            self.first[label].set()

    def say(self, message: str) -> None:
        """A lost machine: what was to be found out there says so."""


@dataclass
class _Member:
    """A machine that has answered."""

    host: Host
    target: Target
    place: Place


class _Examination:
    """One run: its machines, its token, and what has been found so far."""

    def __init__(self, request: Request, listeners: Listeners) -> None:
        self._request = request
        self._listeners = listeners
        self._token = _native.generate_token()
        self._output = _Collected()
        self._members: dict[str, _Member] = {}
        self.report = Report([])

    async def open(self) -> None:
        """Opens attendants on all machines; those that cannot be reached become findings."""
        targets = self._request.targets
        self.report.hosts += await asyncio.gather(*map(self._open, targets))

    async def _open(self, target: Target) -> Host:
        try:
            place = await open_place(target.host, self._request.access, self._output)
        except Failure as failure:
            host = Host(target.host or "this machine")
            remedy = "`sumpter run` fails there in the same way; the others are examined"
            host.findings.append(error("host", str(failure), remedy))
            return host
        host = Host(target.host or place.facts.result().host_name)
        # At once, so that it is closed whatever becomes of the others.
        self._members[host.name] = _Member(host, target, place)
        return host

    async def close(self) -> None:
        """Ends everything everywhere."""
        await asyncio.gather(*(member.place.close() for member in self._members.values()))

    async def run(self) -> None:
        """All checks: of each machine, then between them."""
        names = [host.name for host in self.report.hosts if host.name in self._members]
        plan = rounds(names)
        planned = sum(map(len, plan))
        self.report.unmeasured = len(names) * (len(names) - 1) // 2 - planned
        self._announce(len(plan), planned)
        self._listeners.begin(1 + len(plan))
        await asyncio.gather(*map(self._check, self._members.values()))
        self._listeners.step("between machines")
        await asyncio.gather(*map(self._listen, self._members.values()))
        for pairs in plan:
            measured = await asyncio.gather(*(self._measure(a, b) for a, b in pairs))
            self.report.pairs += [pair for pair in measured if pair is not None]
            self._listeners.step(" and ".join(pairs[0]) if len(pairs) == 1 else "many pairs")
        known = [host.machine for host in self.report.hosts if host.machine is not None]
        if known:
            self.report.findings += judging.check_versions(known)
            self.report.findings += judging.check_busy(known)
        self.report.findings += judging.check_outliers(self.report.pairs)

    def _announce(self, turns: int, pairs: int) -> None:
        left = self.report.unmeasured
        said = f"{counted(len(self._members), 'machine')} and {counted(pairs, 'pair')}"
        said += f" of {pairs + left}" if left else ""
        said += f" in {counted(turns, 'round')}" if turns < pairs else ", one at a time"
        seconds = round(turns * ROUND_S)
        self._listeners.say(
            f"{said}: about {counted(seconds, 'second')}, after the checks of each machine"
        )

    async def _check(self, member: _Member) -> None:
        """`sumpter doctor` on one machine."""
        command = (*_CHECKS, *self._request.options)
        out, problem = await self._finish(member, command, _DOCTOR_S)
        try:
            member.host.findings += [Finding(**each) for each in json.loads(out)]
        except (ValueError, TypeError):
            remedy = f"run `sumpter doctor` on {member.host.name} to see what it says"
            found = f"its checks did not end well: {problem or 'no findings came'}"
            member.host.findings.append(error("doctor", found, remedy))

    async def _listen(self, member: _Member) -> None:
        """Starts the listener of a machine and learns what it is."""
        order = {"towards": self._towards(member), "lifetime_s": _LIFETIME_S}
        label = self._output.label("listener")
        answer = b""
        try:
            async with asyncio.timeout(_LISTEN_S):
                child = await self._start(member, label, (*_AGENT, "listen", json.dumps(order)))
                first = asyncio.create_task(self._output.first[label].wait())
                ended = asyncio.create_task(child.ended())
                await asyncio.wait({first, ended}, return_when=asyncio.FIRST_COMPLETED)
                first.cancel()
            answer = b"\n".join(self._output.out[label])
            said = json.loads(answer or b"{}")
            problem = said.get("problem", _last(child) or "it ended without a word")
            if not problem:
                member.host.machine = Machine.of(member.host.name, said)
        except (AttributeError, KeyError, TypeError, ValueError):
            first_line = answer.decode(errors="replace").partition("\n")[0]
            problem = f"its agent did not answer, but printed: {first_line}"
        except TimeoutError:
            problem = f"no answer within {_LISTEN_S:g} s"
        except Failure as failure:
            problem = str(failure)
        if problem:
            remedy = "give it a network that the other machines share; "
            remedy += "a version of Sumpter without this check must be replaced"
            member.host.findings.append(error("between machines", problem, remedy))

    def _towards(self, member: _Member) -> list[str]:
        """Names and addresses of other machines, for the choice of a machine's own address."""
        found = [self._request.coordinator] if self._request.coordinator else []
        if member.target.host != HERE:
            found.append(member.place.facts.result().client)
        for other in self._members.values():
            if other is not member and other.target.host != HERE:
                server = other.place.facts.result().server
                found.append(server or other.target.host.rpartition("@")[2])
        return [host for host in dict.fromkeys(found) if host]

    async def _measure(self, one: str, other: str) -> Pair | None:
        """Both ways of a pair; the speed by whichever end a connection opens from."""
        a, b = self._members[one].host.machine, self._members[other].host.machine
        if a is None or b is None:
            return None
        there = Way("there", a, b, await self._figures(a, b, speeds=True))
        back = Way("back", b, a, await self._figures(b, a, speeds="speeds" not in there.figures))
        pair = Pair(there, back)
        pair.findings.extend(judging.judge(pair))
        return pair

    async def _figures(self, source: Machine, target: Machine, speeds: bool) -> dict[str, Any]:
        streams = min(MOST_STREAMS, source.cores, target.cores) if speeds else 0
        sizes = [mtu for mtu in (source.mtu, target.mtu) if mtu]
        order = {
            "target": target.address,
            "ports": target.ports,
            "udp": target.udp,
            "mtu": min(sizes, default=0),
            "streams": streams,
            "seconds": SPEED_S,
            "lifetime_s": _MEASURE_S,
        }
        command = (*_AGENT, "measure", json.dumps(order))
        out, problem = await self._finish(self._members[source.name], command, _MEASURE_S)
        try:
            return json.loads(out)
        except ValueError:
            return {"problem": problem or "no figures came"}

    async def _start(self, member: _Member, label: Label, arguments: Sequence[str]) -> Child:
        command = (self._request.access.python, *arguments)
        variables: dict[str, str | None] = {**member.target.settings}
        if arguments[: len(_AGENT)] == _AGENT:
            # By the environment, since every user of a machine can read command lines.
            variables["SUMPTER_TOKEN"] = self._token
        return await member.place.start(Role(label, member.target.host, command, {}, variables))

    async def _finish(
        self, member: _Member, arguments: Sequence[str], limit_s: float
    ) -> tuple[bytes, str]:
        """What a process has printed, and why it failed if it did."""
        label = self._output.label("process")
        child = None
        try:
            async with asyncio.timeout(limit_s):
                child = await self._start(member, label, arguments)
                code = await child.ended()
        except TimeoutError:
            if child is not None and child.pid.done():
                child.signal(signal.SIGKILL)
            return b"", f"no end within {limit_s:g} s"
        except Failure as failure:
            return b"", str(failure)
        if member.place.lost:
            return b"", f"the connection to {member.host.name} was lost"
        out = b"\n".join(self._output.out.pop(label))
        return out, _last(child) or (f"exit code {code}" if code else "")


def _last(child: Child) -> str:
    """The last line of what a process has said to its standard error."""
    return next((line for line in reversed(child.errors) if line.strip()), "")


async def _examine(request: Request, listeners: Listeners) -> Report:
    examination = _Examination(request, listeners)
    try:
        await examination.open()
        await examination.run()
    finally:
        await examination.close()
    return examination.report
