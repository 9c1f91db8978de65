"""Which rank and which server runs on which host. Pure functions of what the user asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sumpter._failure import UsageError
from sumpter.launch.place import HERE

# Settings that a line of a hostfile may give: what is true of a machine, not of the job.
SETTINGS_OF_MACHINES = ("bandwidth_gbps", "interfaces", "pin_lanes", "rack", "trunk_gbps")

# A host is never taken for an option of ssh.
_HOST = r"(?:\w[\w.-]*@)?(?:[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:]+(?:%\w+)?\])"


@dataclass(frozen=True)
class Host:
    """A machine and how many processes it takes; named HERE if it is the launching one.

    `settings` are those of all its processes.
    """

    name: str
    slots: int
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Seat:
    """Where one process of the job runs, and its number among those of its machine."""

    host: str
    machine: str | None = None  # the machine that it pretends to be on
    settings: tuple[tuple[str, str], ...] = ()  # those of its machine
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
    """Ranks fill the hosts' slots in the order in which they are given.

    A server on one of these hosts has the settings of that one, too.
    """
    slots = sum(host.slots for host in hosts)
    workers = slots if workers is None else workers
    if workers > slots:
        raise UsageError(f"-n {workers}: the hosts have only {slots} slots")
    known = {host.name: host.settings for host in hosts}
    left = workers
    taken = []
    for host in hosts:
        taken.append((host.name, None, min(left, host.slots)))
        left -= taken[-1][2]
    seats = tuple(
        replace(seat, settings=known[seat.host])
        for seat in _fill([entry for entry in taken if entry[2]])
    )
    helpers = tuple(
        Seat(host.name, settings=known.get(host.name, ()))
        for host in servers
        for _ in range(host.slots)
    )
    return Layout(seats, helpers, 0, workers, len(helpers))


def part_of_job(machine: int, machines: int, local_size: int, servers: int) -> Layout:
    """The workers of this machine in a job whose machines are launched one by one."""
    seats = tuple(
        Seat(HERE, None, (), local_rank, local_size, machine, machines)
        for local_rank in range(local_size)
    )
    return Layout(seats, (), machine * local_size, machines * local_size, servers)


def _fill(machines: Sequence[tuple[str, str | None, int]]) -> tuple[Seat, ...]:
    """The seats of workers on machines given as (host, pretended machine, size)."""
    return tuple(
        Seat(
            host,
            machine,
            (),
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
    """Hosts from lines of `host slots=N NAME=VALUE...`; text after `#` is a comment.

    The names are those of SETTINGS_OF_MACHINES. A line without slots (`slots=0`) is about a
    machine of servers.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        source = f"{file}, line {number}"
        name, *words = re.sub(r"\s*=\s*", "=", line).split()
        pairs = [word.partition("=")[::2] for word in words]
        if re.fullmatch(_HOST, name) is None or not all(value for _, value in pairs):
            raise UsageError(f"{source}: '{line}' is not `HOST slots=N NAME=VALUE...`")
        given = dict(pairs)
        if len(given) < len(pairs):
            raise UsageError(f"{source}: '{line}' gives something twice")
        slots = given.pop("slots", None)
        if slots is not None and not slots.isdecimal():
            raise UsageError(f"{source}: slots={slots} is no number")
        for key in given:
            if key not in SETTINGS_OF_MACHINES:
                known = ", ".join(SETTINGS_OF_MACHINES)
                raise UsageError(f"{source}: '{key}' is neither slots nor one of {known}")
        hosts.append(_host(name, slots, source, here, tuple(given.items())))
    if not any(host.slots for host in hosts):
        raise UsageError(f"{file} names no host")
    return _distinct(hosts, file)


def _host(
    name: str,
    slots: str | None,
    source: str,
    here: Sequence[str],
    settings: tuple[tuple[str, str], ...] = (),
) -> Host:
    count = 1 if slots is None else int(slots)
    if count < 1 and not settings:
        raise UsageError(f"{source}: {name} has no slot; leave the host out")
    own = HERE if name in here else name.replace("[", "").replace("]", "")
    return Host(own, count, settings)


def _distinct(hosts: list[Host], source: str) -> list[Host]:
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            name = host.name or "this machine"
            raise UsageError(f"{source}: {name} is given twice; add up its slots")
        seen.add(host.name)
    return hosts
