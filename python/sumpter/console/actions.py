"""What a user may do to running jobs, and what is said about it: for commands and the console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sumpter import _native
from sumpter._failure import Failure


@dataclass(frozen=True)
class Done:
    """What was done: the coordinator's own words, and lines for a reader."""

    document: str
    lines: tuple[str, ...]


def drain(who: str, settings: dict[str, str]) -> Done:
    """Takes a server, by number or host, out of all jobs. Failure if there is none."""
    document = _native.drain(who, settings)
    report = json.loads(document)
    if not report["drained"]:
        others = ", ".join(map(_name, report["others"])) or "none"
        raise Failure(f"no server is called {who}; servers there are: {others}")
    drained = map(_name, report["drained"])
    return Done(
        document,
        tuple(
            f"server {name} is drained; it ends when no job uses it any more" for name in drained
        ),
    )


def tune(
    changes: dict[str, str], settings: dict[str, str], *, job: str | None, reset: bool
) -> Done:
    """Changes the sizes a job works with, or who chooses them."""
    document = _native.tune(changes, settings, job=job, reset=reset)
    report = json.loads(document)
    values = " ".join(f"{name}={value}" for name, value in report["settings"].items())
    return Done(document, (f"job {report['job']} from epoch {report['epoch']} on: {values}",))


def _name(server: Mapping[str, object]) -> str:
    return f"{server['member']} on {server['host']}"
