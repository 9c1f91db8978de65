"""What has happened between two views of a coordinator, in words: epochs, faults, jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sumpter._words import counted
from sumpter.launch.figures import format_setting
from sumpter.launch.top import JobRow, MemberRow, View

# How grave an event is, and which sign the page gives it.
NOTE, CHANGE, FAULT = "note", "change", "fault"


@dataclass(frozen=True)
class Event:
    """Something that happened to a job, or to a server where no job is named."""

    kind: str  # NOTE, CHANGE or FAULT
    job: str
    text: str


def events(before: View | None, now: View) -> list[Event]:
    """What differs; of the first view, only what went on before it and still matters."""
    found: list[Event] = []
    old = {job.name: job for job in before.jobs} if before else {}
    for job in now.jobs:
        known = old.get(job.name)
        found += _begun(job) if known is None else _job(known, job, _lost(before, now, "workers"))
    if before is not None:
        for name in now.ended:
            if name in old:
                found.append(_ended(name, now))
        found += _servers(before, now)
        refused = now.tally.get("refused", 0) - before.tally.get("refused", 0)
        if refused > 0:
            who = "a process was" if refused == 1 else f"{refused} processes were"
            found.append(Event(FAULT, "", f"{who} refused, usually for a wrong token"))
    return found


def _lost(before: View | None, now: View, role: str) -> bool:
    """Whether members were lost, and did not just leave; True if the coordinator cannot say."""
    name = f"{role}_lost"
    if before is None or name not in now.tally:
        return True
    # A coordinator that restarted counts anew.
    return now.tally[name] > 0 and now.tally[name] != before.tally.get(name)


def _begun(job: JobRow) -> Iterator[Event]:
    size = f"{job.workers} of {counted(job.world_size, 'worker')}"
    yield Event(NOTE, job.name, f"{job.state}, {size}, epoch {job.epoch}")
    if job.last_change:
        yield Event(CHANGE, job.name, f"epoch {job.epoch} had begun: {job.last_change}")
    yield from _faults(None, job)


def _job(before: JobRow, now: JobRow, lost: bool) -> Iterator[Event]:
    if now.epoch != before.epoch:
        why = f": {now.last_change}" if now.last_change else ""
        yield Event(CHANGE, now.name, f"epoch {now.epoch} began{why}")
    changed = [
        f"{name} {format_setting(name, before.settings[name])} -> {format_setting(name, value)}"
        for name, value in now.settings.items()
        if before.settings.get(name, value) != value
    ]
    if changed:
        yield Event(CHANGE, now.name, f"settings: {', '.join(changed)}")
    if now.state != before.state:
        yield Event(NOTE, now.name, f"now {now.state}, was {before.state}")
    yield from _faults(before, now)
    here = {row.number for row in now.members}
    for row in before.members:
        if row.number not in here:
            yield _gone(f"rank {row.number}", now.name, row, lost)


def _faults(before: JobRow | None, now: JobRow) -> Iterator[Event]:
    if now.failure and now.failure != (before.failure if before else ""):
        yield Event(FAULT, now.name, f"failed: {now.failure}")
    stalled = before.stall if before else ""
    if now.stall and not stalled:
        yield Event(FAULT, now.name, now.stall)
    elif stalled and not now.stall:
        yield Event(NOTE, now.name, "no operation is stalled any more")
    old = {row.number: row for row in before.members} if before else {}
    for row in now.members:
        yield from _silence(f"rank {row.number}", now.name, old.get(row.number), row)


def _silence(who: str, job: str, before: MemberRow | None, now: MemberRow) -> Iterator[Event]:
    was = before is not None and before.silent
    if now.silent and not was:
        yield Event(FAULT, job, f"{who} on {now.host} sends no heartbeats")
    elif was and not now.silent:
        yield Event(NOTE, job, f"{who} on {now.host} sends heartbeats again")


def _ended(name: str, now: View) -> Event:
    failure = now.failures.get(name)
    return Event(FAULT, name, f"failed: {failure}") if failure else Event(NOTE, name, "ended")


def _servers(before: View, now: View) -> Iterator[Event]:
    old = {row.number: row for row in before.servers}
    here = {row.number: row for row in now.servers}
    for number, row in here.items():
        who, known = f"server {number}", old.get(number)
        if known is None:
            yield Event(NOTE, "", f"{who} on {row.host} joined")
        elif row.draining and not known.draining:
            yield Event(CHANGE, "", f"{who} on {row.host} is drained")
        yield from _silence(who, "", known, row)
    for number, row in old.items():
        if number not in here:
            lost = _lost(before, now, "servers") and not row.draining
            yield _gone(f"server {number}", "", row, lost)


def _gone(who: str, job: str, row: MemberRow, lost: bool) -> Event:
    if lost:
        return Event(FAULT, job, f"{who} on {row.host} was lost")
    return Event(NOTE, job, f"{who} on {row.host} left")
