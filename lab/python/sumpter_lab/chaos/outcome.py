"""What a chaos run has shown: figures, a verdict, a table."""

from __future__ import annotations

import bisect
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from sumpter_lab.chaos.faults import WHAT, Kind
from sumpter_lab.chaos.inject import Injected
from sumpter_lab.chaos.watch import Round

_TRAINED = re.compile(r"^trained (\d+) epochs, parameters ([0-9a-f]{64})$", re.MULTILINE)
# How many of the faults before the end of a broken run are shown.
_LAST_FAULTS = 5


@dataclass(frozen=True)
class Trained:
    """What a rank said at its end."""

    epochs: int
    digest: str


@dataclass
class Run:
    """One job, disturbed or not."""

    seconds: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    trained: list[Trained | None] = field(default_factory=list)  # by rank
    faults: list[Injected] = field(default_factory=list)
    began_s: float = 0.0  # when faults may begin, on the clock of the rounds
    plan_epochs: int = 0
    helpers: dict[int, int] = field(default_factory=dict)  # looks at the status, by k
    problems: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)  # the first one of each process

    @property
    def bytes_lost(self) -> int:
        """Of operations that failed."""
        return sum(item.bytes for item in self.rounds if item.failed)


def trained(output: str) -> Trained | None:
    """The epochs and the digest that a rank has printed; None if it has not come so far."""
    said = _TRAINED.findall(output)
    return Trained(int(said[-1][0]), said[-1][1]) if said else None


def differences(disturbed: Sequence[Trained | None], quiet: Sequence[Trained | None]) -> list[str]:
    """What is not equal among the parameters of all ranks of both runs; empty if all are."""
    said = [("with faults", rank, item) for rank, item in enumerate(disturbed)]
    said += [("undisturbed", rank, item) for rank, item in enumerate(quiet)]
    missing = [f"rank {rank} {how} printed no digest" for how, rank, item in said if item is None]
    known = [(how, rank, item) for how, rank, item in said if item is not None]
    if missing or not known:
        return missing or ["no rank printed a digest"]
    how0, rank0, first = known[0]
    return [
        f"rank {rank} {how} ended with {item.digest[:12]} after {item.epochs} epochs, rank {rank0} "
        f"{how0} with {first.digest[:12]} after {first.epochs}"
        for how, rank, item in known[1:]
        if item != first
    ]


def pauses(faults_s: Sequence[float], rounds_s: Sequence[float], end_s: float) -> list[float]:
    """How long each fault stopped progress, in seconds; all times are on one clock.

    That is the longest time without a finished round that began, or went on, between the fault and
    the next one, counted from the fault on. What goes on beyond the next fault counts for both.
    """
    marks = sorted(rounds_s)
    found = []
    for index, fault_s in enumerate(faults_s):
        until_s = faults_s[index + 1] if index + 1 < len(faults_s) else end_s
        first = bisect.bisect_right(marks, fault_s)
        last = bisect.bisect_left(marks, until_s)
        ends = [*marks[first:last], marks[last] if last < len(marks) else end_s]
        begins = [fault_s, *ends[:-1]]
        found.append(max(0.0, *(b - a for a, b in zip(begins, ends, strict=True))))
    return found


def document(
    asked: dict[str, Any], disturbed: Run, quiet: Run, about: dict[str, Any]
) -> dict[str, Any]:
    """Everything as one JSON document."""
    stops = _pauses_of(disturbed)
    by_kind = {
        str(kind): {
            "count": len(of_kind),
            "median_pause_s": statistics.median(of_kind),
            "longest_pause_s": max(of_kind),
        }
        for kind in Kind
        if (of_kind := [s for s, f in zip(stops, disturbed.faults, strict=True) if f.kind == kind])
    }
    problems = verdict(disturbed, quiet)
    ended = next((item for item in disturbed.trained if item), None)
    return {
        **asked,
        **about,
        "passed": not problems,
        "problems": problems,
        "faults": by_kind,
        "seconds_trained": disturbed.seconds,
        "epochs_trained": ended.epochs if ended else None,
        "plan_epochs": disturbed.plan_epochs,
        "helpers_seen": disturbed.helpers,
        "rounds": sum(not item.failed for item in disturbed.rounds),
        "bytes_summed": sum(item.bytes for item in disturbed.rounds if not item.failed),
        "bytes_lost": disturbed.bytes_lost,
        "quiet_seconds": quiet.seconds,
        "quiet_rounds": len(quiet.rounds),
        "quiet_longest_pause_s": _longest_gap(quiet),
        "digests": _digests(disturbed.trained),
        "quiet_digests": _digests(quiet.trained),
        "errors": disturbed.errors | {f"undisturbed {k}": v for k, v in quiet.errors.items()},
        "injected": [
            {**asdict(item), "pause_s": pause}
            for item, pause in zip(disturbed.faults, stops, strict=True)
        ],
    }


def verdict(disturbed: Run, quiet: Run) -> list[str]:
    """Why the run did not pass; empty if it did."""
    found = [*disturbed.problems, *(f"undisturbed: {text}" for text in quiet.problems)]
    if disturbed.bytes_lost:
        found.append(f"operations of {disturbed.bytes_lost} bytes failed on rank 0")
    # A run that broke has no digests; saying so again explains nothing.
    return found or differences(disturbed.trained, quiet.trained)


def print_outcome(console: Console, found: dict[str, Any]) -> None:
    """Prints the table of faults, the figures and the verdict."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("fault")
    table.add_column("", overflow="fold")
    for head in ("count", "median pause", "longest pause"):
        table.add_column(head, justify="right")
    for kind, row in found["faults"].items():
        times = (f"{row[name]:.2f} s" for name in ("median_pause_s", "longest_pause_s"))
        table.add_row(kind, WHAT[Kind(kind)], str(row["count"]), *times)
    if found["faults"]:
        console.print(table)
    total = sum(row["count"] for row in found["faults"].values())
    helpers = ", ".join(str(k) for k in sorted(found["helpers_seen"], key=int))
    for name, value in (
        ("faults injected", f"{total} in {found['seconds_trained']:.1f} s"),
        ("epochs of the plan", found["plan_epochs"]),
        ("helpers seen (k)", helpers or "-"),
        ("rounds completed", f"{found['rounds']}, {found['bytes_summed']} bytes on each worker"),
        ("bytes lost", found["bytes_lost"]),
        ("epochs trained", found["epochs_trained"] or "-"),
        ("longest pause undisturbed", f"{found['quiet_longest_pause_s']:.2f} s"),
        ("final parameters", _equality(found)),
    ):
        console.print(f"{name + ':':<27}{value}")
    if not found["passed"]:
        _print_problems(console, found)


def _print_problems(console: Console, found: dict[str, Any]) -> None:
    for text in found["problems"]:
        console.print(f"FAILED: {text}", style="red", soft_wrap=True)
    for item in found["injected"][-_LAST_FAULTS:]:
        console.print(
            f"  fault at {item['at_s']:.2f} s: {item['kind']} of {item['victim']}", soft_wrap=True
        )
    for name, text in found["errors"].items():
        console.print(f"  {name}: {text}", soft_wrap=True)


def _equality(found: dict[str, Any]) -> str:
    digests = {*found["digests"], *found["quiet_digests"]}
    if None in digests or not found["quiet_digests"]:
        return "not known, since a run broke"
    if len(digests) > 1:
        return "NOT EQUAL to those of the undisturbed run"
    (digest,) = digests
    return f"equal to those of the undisturbed run (sha256 {digest[:12]})"


def _digests(said: Sequence[Trained | None]) -> list[str | None]:
    return [item.digest if item else None for item in said]


def _pauses_of(run: Run) -> list[float]:
    rounds_s = [item.at_s for item in run.rounds if not item.failed]
    begins_s = [run.began_s + item.at_s for item in run.faults]
    # After the last round of a run that went well there was nothing to stop.
    over_s = run.began_s + run.seconds if run.problems or not rounds_s else rounds_s[-1]
    return pauses(begins_s, rounds_s, over_s)


def _longest_gap(run: Run) -> float:
    times = [item.at_s for item in run.rounds if item.at_s >= run.began_s]
    return max((b - a for a, b in zip(times, times[1:], strict=False)), default=0.0)
