"""What `sumpter top` and `sumpter console` show: a coordinator's jobs between two looks.

All figures are rates between the two looks; with one look only, means since each member's start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sumpter.launch.figures import format_bytes, format_optional, format_rate, goodput_gbps, mean
from sumpter.launch.links import (
    describe_racks,
    optimal_s_per_byte,
    why_no_optimum,
    without_bandwidth,
)
from sumpter.launch.status import Job, Late, Member, Stats, read_servers, read_status, read_tally

_CAUSES = {
    "send": "wait_send_s",
    "results": "wait_results_s",
    "plan": "wait_plan_s",
    "coordinator": "wait_coordinator_s",
}

# A member that is well sends a heartbeat every second, or more often.
_SILENT_S = 1.5


@dataclass(frozen=True)
class Wait:
    """A rank that members waited for, as the last to contribute."""

    rank: int
    seconds: float  # added up over members
    share: float  # of all such waiting


@dataclass(frozen=True)
class MemberRow:
    """One worker or server; rates are bytes per second over the network."""

    role: str
    number: int  # a worker's rank, a server's number with the coordinator
    host: str
    rack: str  # of its machine, if it is known
    state: str  # "", "draining", that it skips NaNs, or for how long it has been silent
    draining: bool
    silent: bool  # it has missed heartbeats
    sent_per_s: float
    received_per_s: float
    summed_per_s: float
    drain_per_s: float | None  # of its send queues while non-empty: the achievable bandwidth
    busy: float | None  # the part of the time with an operation under way; of workers
    waits_for: str  # the cause with most of the busy time: send, results, plan, coordinator
    waited_for: str  # the rank that its lanes waited for longest, and its part of the waiting
    operations: int
    queued_bytes: float
    waiting_partitions: int  # in its lanes, for a rank
    memory_bytes: float


@dataclass(frozen=True)
class JobRow:
    """One job."""

    name: str
    state: str
    workers: int
    world_size: int
    n: int  # machines with workers
    k: int  # machines that only sum
    epoch: int
    step: int
    goodput_gbps: float | None
    optimum_share: float | None
    without_bandwidth: str  # whose bandwidth the share of the optimum lacks
    waited_for: str  # the rank that members waited for longest, and its part of the waiting
    waits: tuple[Wait, ...]  # all such ranks, the longest first
    racks: str  # what the plan makes of the racks, where any is known
    rack_hubs: bool | None  # whether each rack sums its machines' contributions
    stall: str
    last_change: str  # why the epoch began
    failure: str
    missing: tuple[str, ...]  # what its start waits for
    settings: Mapping[str, str]  # what `sumpter tune` changes, as it is now
    servers: tuple[int, ...]  # numbers of those in its plan
    members: tuple[MemberRow, ...]


@dataclass(frozen=True)
class Look:
    """What the coordinator said, and when."""

    at_s: float
    jobs: dict[str, Job]
    servers: dict[int, Member]
    ended: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    tally: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """What is shown."""

    jobs: tuple[JobRow, ...]
    servers: tuple[MemberRow, ...]  # every server, in a job or not
    ended: tuple[str, ...] = ()  # names of jobs that are over
    failures: Mapping[str, str] = field(default_factory=dict)  # why some of them failed
    tally: Mapping[str, int] = field(default_factory=dict)  # such as servers_lost, since the start

    def as_dict(self) -> dict[str, Any]:
        """The view for JSON."""
        return asdict(self)


class Top:
    """Looks at a coordinator again and again."""

    def __init__(self, fetch: Callable[[], str]) -> None:
        self._fetch = fetch
        self._last: Look | None = None

    def look(self) -> View:
        """What has changed since the last look; the first one shows means since the start.

        Raises what `fetch` raises.
        """
        text = self._fetch()
        known = read_status(text)
        jobs = {job.name: job for job in known if not job.over}
        over = [job for job in known if job.over and job.name not in jobs]
        ended = tuple(job.name for job in over)
        failures = {job.name: job.failure for job in over if job.failure}
        servers = {server.number: server for server in read_servers(text)}
        tally = read_tally(text)
        look, before = Look(time.monotonic(), jobs, servers, ended, failures, tally), self._last
        self._last = look
        return compare(before, look)


def compare(before: Look | None, now: Look) -> View:
    """The view between two looks, or since the start."""
    seconds = now.at_s - before.at_s if before else None
    jobs = []
    for job in now.jobs.values():
        known = before.jobs.get(job.name) if before else None
        jobs.append(_job(known, job, seconds if known else None))
    old = before.servers if before else {}
    rows = [_member(old.get(s.number), s, seconds) for s in now.servers.values()]
    return View(tuple(jobs), tuple(rows), now.ended, now.failures, now.tally)


def _job(before: Job | None, job: Job, seconds: float | None) -> JobRow:
    workers = tuple(worker for worker in job.workers if not worker.gone)
    old = {worker.number: worker for worker in before.workers} if before else {}
    past = tuple(old[worker.number] for worker in workers if worker.number in old)
    summed = mean(workers, "tensor_bytes") - mean(past, "tensor_bytes")
    busy_s = mean(workers, "busy_s") - mean(past, "busy_s")
    share = None
    optimum = optimal_s_per_byte(job)
    if optimum is not None and busy_s > 0 and summed > 0:
        share = summed * optimum / busy_s
    waits = _waits(before.waited_for() if before else (), job.waited_for())
    return JobRow(
        name=job.name,
        state=job.state,
        workers=len(workers),
        world_size=job.world_size,
        n=job.gpu_machines,
        k=job.cpu_machines,
        epoch=job.epoch,
        step=int(max((worker.stats.step for worker in workers), default=0)),
        goodput_gbps=goodput_gbps(summed, busy_s),
        optimum_share=share,
        without_bandwidth=why_no_optimum(job) if without_bandwidth(job) else "",
        waited_for=_longest(waits),
        waits=waits,
        racks=describe_racks(job),
        rack_hubs=None if job.rack_hubs is None else job.rack_hubs.sum,
        stall=job.stall,
        last_change=job.last_change,
        failure=job.failure,
        missing=job.missing,
        settings=job.settings,
        servers=tuple(server.number for server in job.servers),
        members=tuple(_member(old.get(worker.number), worker, seconds) for worker in workers),
    )


def _waits(before: Iterable[Late], now: Iterable[Late]) -> tuple[Wait, ...]:
    """The ranks that were waited for since `before`, the longest first."""
    known = {(late.run, late.rank): late.seconds for late in before}
    waits = [(late.rank, late.seconds - known.get((late.run, late.rank), 0.0)) for late in now]
    total = sum(seconds for _, seconds in waits if seconds > 0)
    rows = [Wait(rank, s, s / total) for rank, s in waits if s > 0]
    return tuple(sorted(rows, key=lambda wait: (-wait.seconds, -wait.rank)))


def _longest(waits: Sequence[Wait]) -> str:
    return f"rank {waits[0].rank} ({waits[0].share:.0%})" if waits else ""


def _member(before: Member | None, member: Member, seconds: float | None) -> MemberRow:
    now, old = member.stats, before.stats if before else Stats()
    late: Sequence[Late] = before.late if before else ()
    if before is None or now.elapsed_s < old.elapsed_s:
        old, seconds, late = Stats(), None, ()
    span = now.elapsed_s if seconds is None else seconds

    def rate(name: str) -> float:
        return max(0.0, getattr(now, name) - getattr(old, name)) / span if span > 0 else 0.0

    waits = {cause: rate(name) for cause, name in _CAUSES.items()}
    worst = max(waits, key=lambda cause: waits[cause])
    worker = member.role == "worker"
    state = "draining" if member.draining else ""
    skipped = int(now.skipped_blocks - old.skipped_blocks)
    if skipped > 0:
        state = f"{skipped} blocks with NaNs skipped"
    silent = member.silent_s > _SILENT_S
    if silent:
        state = f"silent for {member.silent_s:.0f} s"
    return MemberRow(
        role=member.role,
        number=member.number,
        host=member.host,
        rack=member.rack,
        state=state,
        draining=member.draining,
        silent=silent,
        sent_per_s=rate("bytes_sent_away"),
        received_per_s=rate("bytes_received_away"),
        summed_per_s=rate("summed_bytes"),
        drain_per_s=now.drain_per_s(old),
        busy=min(1.0, rate("busy_s")) if worker else None,
        waits_for=worst if worker and waits[worst] > 0 else "",
        waited_for=_longest(_waits(late, member.late)),
        operations=int(now.operations),
        queued_bytes=now.queued_bytes,
        waiting_partitions=int(now.lane_waiting_partitions),
        memory_bytes=now.lane_memory_bytes,
    )


def render(view: View, width: int) -> RenderableType:
    """The view for a terminal of so many columns."""
    if not view.jobs and not view.servers and not view.ended:
        return Text("The coordinator knows no job and no server yet.")
    parts: list[RenderableType] = []
    for job in view.jobs:
        parts += [_headline(job), _table(job.members, "rank", width), Text("")]
    if not view.jobs:
        parts += [Text("No job is running."), Text("")]
    if view.servers:
        parts += [Text("Servers", style="bold"), _table(view.servers, "server", width)]
    if view.ended:
        parts.append(Text(f"Ended: {', '.join(view.ended)}", style="dim"))
    return Group(*parts)


def _headline(job: JobRow) -> Text:
    colour = {"running": "green", "failed": "red"}.get(job.state, "yellow")
    line = Text.assemble((job.name, "bold"), "  ", (job.state, colour))
    for name, value in facts(job).items():
        line.append(f"  {name} ", style="dim").append(value)
    if job.without_bandwidth:
        line.append(f"\nshare of the optimum -: {job.without_bandwidth}", style="dim")
    if job.racks:
        line.append(f"\n{job.racks}", style="dim")
    if job.stall:
        line.append(f"\n{job.stall}", style="bold red")
    return line


def facts(job: JobRow) -> dict[str, str]:
    """What is said of a job, as texts by name."""
    return {
        "workers": f"{job.workers}/{job.world_size}",
        "n": str(job.n),
        "k": str(job.k),
        "epoch": str(job.epoch),
        "step": str(job.step),
        "goodput": format_optional(job.goodput_gbps, "{:.2f} Gb/s"),
        "of the optimum": format_optional(job.optimum_share, "{:.0%}"),
        "waited for": job.waited_for or "-",
    }


# Heading, width, and how dear it is: on a narrow terminal the highest numbers go first.
_COLUMNS: dict[str, tuple[int, int]] = {
    "rank": (4, 0),
    "server": (6, 0),
    "host": (10, 1),
    "rack": (8, 3),
    "sent": (9, 2),
    "received": (9, 4),
    "summed": (9, 5),
    "drain": (9, 7),
    "busy": (4, 3),
    "waits for": (11, 1),
    "ops": (5, 9),
    "queued": (8, 6),
    "pending": (7, 8),
    "memory": (8, 10),
    "state": (14, 11),
}
_OF_WORKERS = ("rank", "drain", "busy", "waits for", "ops", "queued")
_LEFT = ("host", "rack", "waits for", "state")
_CUT = ("host", "rack")  # at their widths, on any terminal


def _fitting(names: Sequence[str], width: int) -> list[str]:
    """The dearest columns that fit, in their order."""
    kept = sorted(names, key=lambda name: _COLUMNS[name][1])
    while len(kept) > 1 and sum(_COLUMNS[name][0] + 2 for name in kept) > width:
        kept.pop()
    return [name for name in names if name in kept]


def _table(rows: Sequence[MemberRow], name: str, width: int) -> Table:
    workers = name == "rank"
    other = "server" if workers else "rank"
    names = [n for n in _COLUMNS if n != other and (workers or n == name or n not in _OF_WORKERS)]
    if not any(row.state for row in rows):
        names.remove("state")
    if not any(row.rack for row in rows):
        names.remove("rack")
    fitting = _fitting(names, width)
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in fitting:
        left = column in _LEFT
        most = _COLUMNS[column][0] if column in _CUT else None
        justify = "left" if left else "right"
        table.add_column(column, justify=justify, no_wrap=True, overflow="ellipsis", max_width=most)
    for row in rows:
        texts = cells(row)
        table.add_row(*(Text(texts[column]) for column in fitting))
    return table


def cells(row: MemberRow) -> dict[str, str]:
    """What is said of a member, as texts by column."""
    return {
        "rank": str(row.number),
        "server": str(row.number),
        "host": row.host,
        "rack": row.rack or "-",
        "sent": format_rate(row.sent_per_s),
        "received": format_rate(row.received_per_s),
        "summed": format_rate(row.summed_per_s),
        "drain": "-" if row.drain_per_s is None else format_rate(row.drain_per_s),
        "busy": format_optional(row.busy, "{:.0%}"),
        "waits for": row.waits_for or "-",
        "ops": str(row.operations),
        "queued": format_bytes(row.queued_bytes),
        "pending": str(row.waiting_partitions),
        "memory": format_bytes(row.memory_bytes),
        "state": row.state,
    }
