"""Reads the coordinator's status: each member's counters and stragglers.

The one place that knows the JSON's shape. A reader of a newer or older coordinator must not fail,
so absent fields are zero and unknown ones are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from sumpter._words import printable

# How a machine without a configured name is identified: its boot's UUID, and what follows.
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(/|$)|[0-9a-f]{32}$")


@dataclass(frozen=True)
class Stats:
    """Counters of one member since it joined."""

    bytes_sent: float = 0  # over the network
    bytes_received: float = 0  # over the network
    bytes_local: float = 0  # between a worker and the lane in its own process
    rounds: float = 0  # of tensors, finished by a worker
    lane_rounds: float = 0  # of partitions, summed by the member's lanes
    tensor_bytes: float = 0  # of tensors whose sum has arrived
    step: float = 0  # the most rounds of any tensor
    samples: float = 0
    busy_s: float = 0  # with at least one operation under way
    elapsed_s: float = 0
    bytes_sent_away: float = 0  # that left the machine
    bytes_received_away: float = 0  # that entered it
    summed_bytes: float = 0  # of contributions, by the member's lanes
    operations: float = 0  # under way
    queued_bytes: float = 0  # of contributions that are still to go
    lane_waiting_partitions: float = 0  # in the member's lanes, for a rank
    lane_memory_bytes: float = 0
    wait_send_s: float = 0  # the busy time by cause
    wait_results_s: float = 0
    wait_plan_s: float = 0
    wait_coordinator_s: float = 0
    drained_bytes: float = 0  # that left the machine within wait_send_s
    skipped_blocks: float = 0  # of compressed gradients, for their NaNs

    def drain_per_s(self, before: Stats) -> float | None:
        """The rate at which send queues drained while non-empty, in bytes/s, or None.

        This is the bandwidth that the worker's link achieves; workers of one machine share it.
        """
        waited_s = self.wait_send_s - before.wait_send_s
        drained = self.drained_bytes - before.drained_bytes
        return drained / waited_s if waited_s > 0 and drained > 0 else None


class RackHubs(NamedTuple):
    """What the plan makes of a job's racks."""

    sum: bool  # whether each sums its machines' contributions before they leave it
    on_workers: bool  # whether workers may do so
    on_servers: int  # how many servers may


@dataclass(frozen=True)
class Late:
    """How often, and for how long in all, a rank was the last that a member waited for."""

    rank: int
    count: int
    seconds: float
    run: str = ""  # of a server the run, of those that it has served


@dataclass(frozen=True)
class Member:
    """A worker or a server of a job."""

    role: str
    number: int  # a worker's rank, a server's number of membership
    host: str = ""
    machine: str = ""
    stats: Stats = Stats()
    late: tuple[Late, ...] = ()
    bandwidth_gbps: float | None = None  # of its machine's link, if it is known
    bandwidth_source: str = ""  # who says so: "configured" or "interface"
    rack: str = ""  # of its machine, if it is known
    trunk_gbps: float | None = None  # what that rack's uplink carries each way, if it is known
    rack_hubs: RackHubs | None = None  # what the plan makes of racks, as a worker reports it
    silent_s: float = 0  # since its last heartbeat
    draining: bool = False
    gone: bool = False  # these are its last numbers


@dataclass(frozen=True)
class CodecChoice:
    """What `auto` has chosen for tensors, and why."""

    codec: str  # empty if they are not compressed
    tensors: int
    bytes: float
    example: str  # the name of the largest one
    reason: str  # with the numbers of that one
    line: str  # all of it


@dataclass(frozen=True)
class Job:
    """One job as its coordinator sees it."""

    name: str
    workers: tuple[Member, ...] = ()
    servers: tuple[Member, ...] = ()
    stall: str = ""  # the straggler that operations wait for, if it is for long
    state: str = ""
    epoch: int = 0
    world_size: int = 0
    over: bool = False  # all its workers are gone
    compression: tuple[CodecChoice, ...] = ()  # what auto has chosen
    last_change: str = ""  # why the plan last changed
    failure: str = ""  # why the job failed
    missing: tuple[str, ...] = ()  # what its start waits for
    settings: Mapping[str, str] = field(default_factory=dict)  # what may change, as it is now
    run: str = ""  # its number, which says what servers have counted for it
    late: tuple[Late, ...] = ()  # what all its members waited for, those gone included

    @property
    def generation(self) -> int:
        """The generation of an elastic job, which stands behind its name; 0 for others."""
        number = self.name.rpartition("@")[2]
        return int(number) if "@" in self.name and number.isdigit() else 0

    @property
    def gpu_machines(self) -> int:
        """n: the machines that run workers."""
        return len({worker.machine or str(worker.number) for worker in self.workers})

    @property
    def cpu_machines(self) -> int:
        """k: the machines that only sum."""
        gpu = {worker.machine for worker in self.workers}
        return len({server.machine or str(server.number) for server in self.servers} - gpu)

    @property
    def racks(self) -> tuple[str, ...]:
        """The known racks of its members, in the order of their names."""
        return tuple(sorted({member.rack for member in self.workers + self.servers} - {""}))

    @property
    def rack_hubs(self) -> RackHubs | None:
        """What the plan makes of the racks; None until a worker reports it."""
        known = [worker.rack_hubs for worker in self.workers if worker.rack_hubs is not None]
        return max(known, default=None)

    def waited_for(self) -> list[Late]:
        """The ranks that members waited for, the longest first."""
        return sorted(self.late, key=lambda late: -late.seconds)


def load(text: str) -> Any:
    """A status document, whose names and reasons are those of other machines."""
    return _printable(json.loads(text))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(one) for one in value]
    if isinstance(value, dict):
        return {printable(key): _printable(one) for key, one in value.items()}
    return value


def read_status(text: str) -> list[Job]:
    """The jobs in a status document."""
    document = load(text)
    servers = {member.number: member for member in _members(document, "server", "member")}
    return [_job(entry, servers) for entry in _entries(document, "jobs")]


def read_servers(text: str) -> tuple[Member, ...]:
    """The servers that are here, in a job or not."""
    servers = _members(load(text), "server", "member")
    return tuple(server for server in servers if not server.gone)


def read_tally(text: str) -> dict[str, int]:
    """How often things have happened since the coordinator's start; empty if it does not say."""
    events = _mapping(load(text).get("events"))
    return {str(name): int(_number(count)) for name, count in events.items()}


def machine_names(members: Iterable[Member]) -> dict[str, str]:
    """A short name for each machine: what the user called it, else its host.

    A machine without a name of its own is identified by a UUID, which means nothing to a reader. Of
    several on one host (containers), each also has the end of its identity.
    """
    hosts = {member.machine: member.host for member in members}
    names = {}
    for machine, host in hosts.items():
        if not host or not _UUID.match(machine):
            names[machine] = machine
        elif sum(other == host for other in hosts.values()) == 1:
            names[machine] = host
        else:
            names[machine] = f"{host}/{machine[-6:].lstrip('/')}"
    return names


def merge(before: Job | None, now: Job) -> Job:
    """`now`, with members that have left kept as they were last seen."""
    if before is None:
        return now
    return replace(
        now,
        workers=_merge_members(before.workers, now.workers),
        servers=_merge_members(before.servers, now.servers),
        compression=now.compression or before.compression,
        late=now.late or before.late,
    )


def _merge_members(before: Iterable[Member], now: Iterable[Member]) -> tuple[Member, ...]:
    members = {member.number: member for member in (*before, *now)}
    return tuple(members[number] for number in sorted(members))


def _job(entry: Mapping[str, Any], servers: Mapping[int, Member]) -> Job:
    """A job, with those of the coordinator's servers that serve it."""
    own = [servers[number] for number in entry.get("servers") or [] if number in servers]
    workers = _members(entry, "worker", "rank")
    stall = str(_mapping(entry.get("stall")).get("message", ""))
    return Job(
        name=str(entry.get("name", "default")),
        run=str(entry.get("run") or ""),
        late=tuple(_late(late) for late in _entries(entry, "late")),
        workers=tuple(workers),
        servers=tuple(own),
        stall=stall,
        state=str(entry.get("state", "")),
        epoch=int(_number(entry.get("epoch"))),
        world_size=int(_number(entry.get("world_size"))),
        over=bool(entry.get("over")),
        compression=tuple(_choice(choice) for choice in _entries(entry, "compression")),
        last_change=str(entry.get("last_change") or ""),
        failure=str(entry.get("failure") or ""),
        missing=tuple(map(str, entry.get("missing") or [])),
        settings={str(k): str(v) for k, v in _mapping(entry.get("settings")).items()},
    )


def _members(document: Mapping[str, Any], role: str, key: str) -> list[Member]:
    return [_member(role, key, entry) for entry in _entries(document, f"{role}s")]


def _member(role: str, key: str, entry: Mapping[str, Any]) -> Member:
    stats = _mapping(entry.get("stats"))
    counters = _mapping(stats.get("counters"))
    known = {item.name: _number(counters.get(item.name)) for item in fields(Stats)}
    return Member(
        role=role,
        number=int(_number(entry.get(key))),
        host=str(entry.get("host", "")),
        machine=str(entry.get("machine", "")),
        stats=Stats(**known),
        late=tuple(_late(late) for late in _entries(stats, "late")),
        bandwidth_gbps=_number(entry.get("bandwidth_gbps")) or None,
        bandwidth_source=str(entry.get("bandwidth_source") or ""),
        rack=str(entry.get("rack") or ""),
        trunk_gbps=_number(entry.get("trunk_gbps")) or None,
        rack_hubs=_rack_hubs(counters),
        silent_s=_number(entry.get("silent_s")),
        draining=bool(entry.get("draining")),
        gone=bool(entry.get("gone")),
    )


def _rack_hubs(counters: Mapping[str, Any]) -> RackHubs | None:
    if "rack_hubs" not in counters:
        return None
    names = ("rack_hubs", "rack_hubs_on_workers", "rack_hubs_on_servers")
    sum_, on_workers, on_servers = (_number(counters.get(name)) for name in names)
    return RackHubs(bool(sum_), bool(on_workers), int(on_servers))


def _choice(entry: Mapping[str, Any]) -> CodecChoice:
    texts = ("codec", "example", "reason", "line")
    codec, example, reason, line = (str(entry.get(key, "")) for key in texts)
    tensors, size = int(_number(entry.get("tensors"))), _number(entry.get("bytes"))
    return CodecChoice(codec, tensors, size, example, reason, line)


def _late(entry: Mapping[str, Any]) -> Late:
    rank, count = int(_number(entry.get("rank"))), int(_number(entry.get("count")))
    return Late(rank, count, _number(entry.get("seconds")), str(entry.get("run") or ""))


def _entries(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [entry for entry in document.get(key) or [] if isinstance(entry, Mapping)]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
