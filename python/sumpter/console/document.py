"""A view as the page shows it: texts in tables, cut to lengths that no name can exceed.

Names of jobs, hosts, ranks' failures and racks come from members and are not trusted: the page puts
every one of these texts into the text of an element, never into markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sumpter._words import printable
from sumpter.console.events import Event
from sumpter.launch.figures import format_seconds, format_setting
from sumpter.launch.top import JobRow, MemberRow, View, cells, facts

LONGEST = 300  # characters of a text
# The first ones are seen on a phone without scrolling.
_OF_WORKERS = (
    *("rank", "host", "busy", "waits for", "state", "last"),
    *("sent", "received", "summed", "drain", "queued", "pending", "memory", "ops", "rack"),
)
_OF_SERVERS = (
    *("server", "host", "jobs", "state", "last"),
    *("sent", "received", "summed", "pending", "memory", "rack"),
)
_TITLES = {
    "last": "last rank",
    "pending": "pending parts",
    "ops": "operations",
    "drain": "link drains",
}
_NUMBERS = {"busy", "sent", "received", "summed", "drain", "queued", "pending", "memory", "ops"}


def view_document(view: View) -> dict[str, Any]:
    """Jobs and servers, each with its figures and tables."""
    return {
        "jobs": [_job(job) for job in view.jobs],
        "servers": _table(view.servers, _OF_SERVERS, _jobs_by_server(view)),
        "ended": [short(name) for name in view.ended],
    }


def event_rows(happened: Iterable[tuple[float, Event]]) -> list[dict[str, Any]]:
    """Events, the oldest first."""
    return [
        {"time_s": time_s, "kind": event.kind, "job": short(event.job), "text": short(event.text)}
        for time_s, event in happened
    ]


def short(text: str) -> str:
    """A text in one line, no longer than a reader bears, whose letters stay in their order."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def _job(job: JobRow) -> dict[str, Any]:
    notes = []
    if job.missing:
        notes.append(f"waiting for {', '.join(job.missing)}")
    if job.without_bandwidth:
        notes.append(f"Share of the optimum unknown: {job.without_bandwidth}")
    notes += [text for text in (job.racks, _change(job)) if text]
    return {
        "key": job.name,
        "name": short(job.name),
        "state": short(job.state),
        "facts": {name: short(value) for name, value in facts(job).items()},
        "notes": [short(note) for note in notes],
        "faults": [short(text) for text in (job.failure, job.stall) if text],
        "settings": {
            short(name): short(format_setting(name, value)) for name, value in job.settings.items()
        },
        "waits": [
            {"rank": wait.rank, "time": format_seconds(wait.seconds), "share": wait.share}
            for wait in job.waits[:16]
        ],
        "members": _table(job.members, _OF_WORKERS, {}),
    }


def _change(job: JobRow) -> str:
    return f"Epoch {job.epoch} began: {job.last_change}" if job.last_change else ""


def _jobs_by_server(view: View) -> dict[int, str]:
    jobs: dict[int, list[str]] = {}
    for job in view.jobs:
        for number in job.servers:
            jobs.setdefault(number, []).append(job.name)
    return {number: ", ".join(names) for number, names in jobs.items()}


def _table(
    rows: Sequence[MemberRow], columns: Sequence[str], jobs: dict[int, str]
) -> dict[str, Any]:
    """The table without columns that are empty in all rows."""
    texts = [
        cells(row) | {"jobs": jobs.get(row.number, ""), "last": row.waited_for} for row in rows
    ]
    shown = [name for name in columns if any(text[name] not in ("", "-") for text in texts)]
    return {
        "columns": [
            {"name": name, "title": _TITLES.get(name, name), "number": name in _NUMBERS}
            for name in shown
        ],
        "rows": [
            {
                "number": row.number,
                "host": short(row.host),
                "draining": row.draining,
                "cells": [short(text[name]) for name in shown],
            }
            for row, text in zip(rows, texts, strict=True)
        ],
    }
