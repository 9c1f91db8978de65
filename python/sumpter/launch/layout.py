"""Which rank and which server runs on which host. Pure functions of what the user asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sumpter._failure import UsageError
from sumpter.launch.place import HERE

# A host is never taken for an option of ssh.
_HOST = r"(?:\w[\w.-]*@)?(?:[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:]+(?:%\w+)?\])"


@dataclass(frozen=True)
class Host:
    """A machine and how many processes it takes; named HERE if it is the launching one."""

    name: str
    slots: int


@dataclass(frozen=True)
class Seat:
    """Where one process of the job runs, and its number among those of its machine."""

    host: str
    machine: str | None = None  # the machine that it pretends to be on
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0  # among the machines' processes of this local rank
    cross_size: int = 1


@dataclass(frozen=True)
class Layout:
    """Seats by rank, and by number of server.

    Of a larger job these may be the ranks from `first_rank` on.
    """

    workers: tuple[Seat, ...]
    servers: tuple[Seat, ...] = ()
    first_rank: int = 0
    world_size: int = 0
    all_servers: int = 0

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(seat.host for seat in (*self.workers, *self.servers)))

    def processes_on(self, host: str, of: Sequence[Seat]) -> int:
        return sum(seat.host == host for seat in of)


def on_one_machine(workers: int, servers: int, machines: int) -> Layout:
    """This machine, pretending that workers and servers run on machines of their own."""
    sizes = [0] * machines
    for rank in range(workers):
        sizes[rank * machines // workers] += 1
    names = [f"gpu-{index}" for index in range(machines)]
    seats = _fill([(HERE, name, size) for name, size in zip(names, sizes, strict=True)])
    helpers = tuple(Seat(HERE, f"cpu-{index}") for index in range(servers))
    return Layout(seats, helpers, 0, workers, servers)


def on_hosts(hosts: Sequence[Host], workers: int | None, servers: Sequence[Host]) -> Layout:
    """Ranks fill the hosts' slots in the order in which they are given."""
    slots = sum(host.slots for host in hosts)
    workers = slots if workers is None else workers
    if workers > slots:
        raise UsageError(f"-n {workers}: the hosts have only {slots} slots")
    left = workers
    taken = []
    for host in hosts:
        taken.append((host.name, None, min(left, host.slots)))
        left -= taken[-1][2]
    seats = _fill([entry for entry in taken if entry[2]])
    helpers = tuple(Seat(host.name) for host in servers for _ in range(host.slots))
    return Layout(seats, helpers, 0, workers, len(helpers))


def part_of_job(machine: int, machines: int, local_size: int, servers: int) -> Layout:
    """The workers of this machine in a job whose machines are launched one by one."""
    seats = tuple(
        Seat(HERE, None, local_rank, local_size, machine, machines)
        for local_rank in range(local_size)
    )
    return Layout(seats, (), machine * local_size, machines * local_size, servers)


def _fill(machines: Sequence[tuple[str, str | None, int]]) -> tuple[Seat, ...]:
    """The seats of workers on machines given as (host, pretended machine, size)."""
    return tuple(
        Seat(
            host,
            machine,
            local_rank,
            size,
            sum(before > local_rank for _, _, before in machines[:index]),
            sum(any_size > local_rank for _, _, any_size in machines),
        )
        for index, (host, machine, size) in enumerate(machines)
        for local_rank in range(size)
    )


def parse_hosts(text: str, option: str, here: Sequence[str]) -> list[Host]:
    """Hosts from `host1:2,host2:2`; a host without a number takes one process."""
    pattern = re.compile(rf"({_HOST})(?::(\d+))?")
    hosts = []
    for part in (part.strip() for part in text.split(",")):
        match = pattern.fullmatch(part)
        if match is None:
            raise UsageError(f"{option} {text}: '{part}' is not HOST or HOST:SLOTS")
        hosts.append(_host(match[1], match[2], f"{option} {text}", here))
    return _distinct(hosts, option)


def parse_hostfile(text: str, file: str, here: Sequence[str]) -> list[Host]:
    """Hosts from lines of `host slots=N`; text after `#` is a comment."""
    pattern = re.compile(rf"({_HOST})(?:\s+slots\s*=\s*(\d+))?")
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = pattern.fullmatch(line)
        if match is None:
            raise UsageError(f"{file}, line {number}: '{line}' is not `HOST slots=N`")
        hosts.append(_host(match[1], match[2], f"{file}, line {number}", here))
    if not hosts:
        raise UsageError(f"{file} names no host")
    return _distinct(hosts, file)


def _host(name: str, slots: str | None, source: str, here: Sequence[str]) -> Host:
    count = 1 if slots is None else int(slots)
    if count < 1:
        raise UsageError(f"{source}: {name} has no slot; leave the host out")
    return Host(HERE if name in here else name.replace("[", "").replace("]", ""), count)


def _distinct(hosts: list[Host], source: str) -> list[Host]:
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            name = host.name or "this machine"
            raise UsageError(f"{source}: {name} is given twice; add up its slots")
        seen.add(host.name)
    return hosts
