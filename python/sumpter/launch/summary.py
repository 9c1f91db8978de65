"""What a run has done, printed once it has ended: the plan, the bytes, the seconds, the waiting."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sumpter import _native
from sumpter._words import counted
from sumpter.launch.figures import (
    format_bytes,
    format_optional,
    format_rate,
    format_seconds,
    goodput_gbps,
    mean,
    optimum_share,
)
from sumpter.launch.links import describe_links, describe_racks, why_no_optimum
from sumpter.launch.status import Job, Member, Stats, machine_names

_WIDEST = 1000  # characters of a table


def print_summary(
    console: Console, job: Job | None, bandwidth_gbps: float | None, *, interrupted: bool = False
) -> None:
    """Prints the summary; says so when nothing was ever summed."""
    if job is None or not any(worker.stats.rounds for worker in job.workers):
        console.print("No tensor was summed by Sumpter in this run.", style="dim")
        return
    if interrupted:
        # Workers that a signal ends make no last report, servers do.
        console.print(
            "\nInterrupted: a worker's counters are those of its last heartbeat, up to a second "
            "before the end, so servers may have counted more.",
            style="bold",
        )
    _print(
        console,
        "",
        _headline(job, bandwidth_gbps),
        *map(Text, compression_lines(job)),
        "",
        _members(job),
        *_waiting(job),
    )


def print_job(console: Console, job: Job) -> None:
    """Prints a job of a coordinator, one that has ended as well."""
    members = f"{counted(len(job.workers), 'worker')}, {counted(len(job.servers), 'server')}"
    state = "ended" if job.over else job.state
    _print(
        console,
        Text(f"Job {job.name}{f' ({state})' if state else ''}: {members}", style="bold"),
        Text(f"Plan: {describe_plan(job)}"),
        Text(f"Links: {describe_links(job)}"),
        *_racks(job),
        *map(Text, compression_lines(job)),
        *_drain(job),
        _members(job),
        *_waiting(job),
        *([] if job.over else _stall(job)),
    )


def _print(console: Console, *parts: RenderableType) -> None:
    """Prints parts below each other; a file or a pipe has no width to which a table is cut."""
    if not console.is_terminal:
        options = console.options.update(max_width=_WIDEST)
        tables = (part for part in parts if isinstance(part, Table))
        widths = (console.measure(table, options=options).maximum for table in tables)
        console.width = max([console.width, *widths])
    console.print(Group(*parts), highlight=False)


def _headline(job: Job, bandwidth_gbps: float | None) -> Group:
    summed, busy_s = mean(job.workers, "tensor_bytes"), mean(job.workers, "busy_s")
    share = optimum_share(job, summed, busy_s, bandwidth_gbps)
    speed = format_optional(goodput_gbps(summed, busy_s), "{:.2f} Gb/s")
    optimum = format_optional(share, "{:.0%} of the optimum")
    sentence = (
        f"{format_bytes(summed)} summed in {busy_s:.1f} s of communication: goodput {speed}, "
        f"{optimum if share is not None else _no_share(job)}"
    )
    return Group(Text(f"Plan: {describe_plan(job)}"), Text(sentence))


def _no_share(job: Job) -> str:
    why = why_no_optimum(job)
    return f"share of the optimum - ({why})" if why else "share of the optimum -"


def describe_plan(job: Job) -> str:
    """The shares of the plan in a sentence."""
    n, k = job.gpu_machines, job.cpu_machines
    if n < 2:
        return "one GPU machine, nothing to send" if n else "no worker has joined yet"
    request = {"workers": n, "servers": k, "bytes": 10**9, "bandwidth_gbps": 1.0}
    report = json.loads(_native.plan(json.dumps(request)))
    text = f"{n} GPU machines sum {report['share_gpu']:.1%} each"
    if k:
        noun = "machines sum" if k > 1 else "machine sums"
        text += f", {k} CPU {noun} {report['share_cpu']:.1%}{' each' if k > 1 else ''}"
    return text


def _members(job: Job) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("member", no_wrap=True)
    # The one that a narrow terminal cuts, as rich takes from columns that may wrap.
    table.add_column("machine", overflow="ellipsis")
    racks = bool(job.racks)
    if racks:
        table.add_column("rack", overflow="ellipsis", no_wrap=True, max_width=12)
    for name in ("sent", "received", "local", "sums", "partitions", "busy"):
        table.add_column(name, justify="right", no_wrap=True)
    names = machine_names(job.workers + job.servers)
    for worker in job.workers:
        table.add_row(*map(Text, _row(f"worker {worker.number}", worker, names, racks)))
    for index, server in enumerate(job.servers):
        table.add_row(*map(Text, _row(f"server {index}", server, names, racks)))
    return table


def _row(name: str, member: Member, names: Mapping[str, str], racks: bool) -> tuple[str, ...]:
    stats = member.stats
    return (
        f"{name} (left)" if member.gone else name,
        names[member.machine],
        *([member.rack or "-"] if racks else []),
        format_bytes(stats.bytes_sent),
        format_bytes(stats.bytes_received),
        format_bytes(stats.bytes_local) if stats.bytes_local else "-",
        f"{stats.rounds:,.0f}" if member.role == "worker" else "-",
        f"{stats.lane_rounds:,.0f}",
        f"{stats.busy_s:.1f} s" if member.role == "worker" else "-",
    )


def _racks(job: Job) -> list[Text]:
    """What the plan makes of the racks, where any is known."""
    found = describe_racks(job)
    return [Text(f"{found[0].upper()}{found[1:]}")] if found else []


def compression_lines(job: Job) -> list[str]:
    """What `auto` has chosen: a line for tensors that are treated alike, the most bytes first."""
    return [f"{choice.line[:1].upper()}{choice.line[1:]}" for choice in job.compression]


def _drain(job: Job) -> list[Text]:
    """The bandwidth that the workers' links achieve, where send queues show it."""
    rates = [worker.stats.drain_per_s(Stats()) for worker in job.workers]
    known = [rate for rate in rates if rate is not None]
    if not known:
        return []
    least, most = format_rate(min(known)), format_rate(max(known))
    span = least if least == most else f"{least} to {most}"
    return [Text(f"Send queues of workers drain at {span}")]


def _waiting(job: Job) -> list[Text]:
    """The stragglers, in words; a rank that was never waited for is not mentioned."""
    waited = [late for late in job.waited_for() if late.count]
    lines = [Text("")] if waited else []
    partitions = sum(late.count for late in waited)
    for late in waited:
        share, wait_s = late.count / partitions, late.seconds / late.count
        lines.append(
            Text(
                f"Rank {late.rank} was the last to contribute to {share:.0%} of the partitions; "
                f"the others waited {format_seconds(wait_s)} for it on average"
            )
        )
    return lines


def _stall(job: Job) -> list[Text]:
    """The straggler of the moment."""
    return [Text(f"Now {job.stall}", style="bold")] if job.stall else []
