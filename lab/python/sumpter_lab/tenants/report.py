"""The figures of a run as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from sumpter_lab.scaffold.results.figures import BUSY_CORES, STOLEN


def print_outcome(console: Console, found: dict[str, Any]) -> None:
    """Prints a row for each job, then what they mean together."""
    columns = {
        "weight": ("weight", 0),
        "fair_mbit": ("fair share Mb/s", 1),
        "together_mbit": ("together Mb/s", 1),
        "of_fair": ("of fair share", 3),
        "part": ("part", 3),
    }
    if found["greedy_shape"]:
        columns["beside_greedy_mbit"] = ("beside greedy Mb/s", 1)
        columns["part_beside_greedy"] = ("part", 3)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("job")
    for head, _ in columns.values():
        table.add_column(head, justify="right")
    for row in found["jobs"]:
        cells = (_number(row[name], digits) for name, (_, digits) in columns.items())
        table.add_row(row["job"], *cells)
    console.print(table)
    for name, value in _summary(found):
        console.print(f"{name + ':':<38}{value}")
    for note in _notes(found):
        console.print(note, style="yellow", soft_wrap=True)


def _summary(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("one job alone", f"{found['alone_mbit']:.1f} Mb/s"),
        ("all jobs together, of that", _number(found["aggregate_of_alone"], 3)),
        ("Jain's index of the parts", f"{found['jain']:.4f}"),
        ("lowest part", f"{found['lowest_part']:.3f}"),
    ]
    if found["greedy_shape"]:
        of_together = found["aggregate_beside_greedy_of_together"]
        lines += [
            ("the greedy job's part", f"{found['greedy_part']:.3f}"),
            ("polite jobs' part beside it", f"{found['polite_part']:.3f}"),
            ("the lowest of them", f"{found['lowest_polite_part']:.3f}"),
            ("all beside greedy, of all together", _number(of_together, 3)),
        ]
    return lines


def _notes(found: dict[str, Any]) -> list[str]:
    """What makes the figures doubtful."""
    notes = []
    for phase, idle in found["cores_idle"].items():
        stolen, name = found["cores_steal"][phase] or 0.0, phase.replace("_", " ")
        if stolen > STOLEN:
            notes.append(f"{name}: other guests of the host took {stolen:.0%} of the cores' time")
        elif idle is not None and idle < 1 - BUSY_CORES:
            notes.append(f"{name}: the cores were {1 - idle:.0%} busy and may be what was shared")
    return notes


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
