"""The figures of a run as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

# More of the cores' time in use than this, and they may set the figures, not the server's link.
_BUSY_CORES = 0.9


def print_outcome(console: Console, found: dict[str, Any]) -> None:
    """Prints a row for each job, then what they mean together."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("job")
    heads = ["weight", "fair share Mb/s", "together Mb/s", "of fair share"]
    if found["greedy_shape"]:
        heads.append("beside greedy Mb/s")
    for head in heads:
        table.add_column(head, justify="right")
    for row in found["jobs"]:
        cells = [str(row["weight"])]
        cells += [_number(row.get(name), 1) for name in ("fair_mbit", "together_mbit")]
        cells.append(_number(row.get("of_fair"), 3))
        cells += [_number(row["beside_greedy_mbit"], 1)] if found["greedy_shape"] else []
        table.add_row(row["job"], *cells)
    console.print(table)
    for name, value in _summary(found):
        console.print(f"{name + ':':<34}{value}")
    for phase, idle in found["cores_idle"].items():
        if idle is not None and idle < 1 - _BUSY_CORES:
            stolen = found["cores_steal"][phase] or 0.0
            console.print(
                f"the cores were {1 - idle:.0%} busy in the phase '{phase.replace('_', ' ')}' "
                f"({stolen:.0%} with others' work): they may set the figures, not the server",
                style="yellow",
                soft_wrap=True,
            )


def _summary(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("one job alone", f"{found['alone_mbit']:.1f} Mb/s"),
        ("all jobs, of that", _number(found["aggregate_of_alone"], 3)),
        ("Jain's index of rate over weight", f"{found['jain']:.4f}"),
        ("lowest share of its fair share", f"{found['lowest_of_fair']:.3f}"),
    ]
    if found["greedy_shape"]:
        lines += [
            ("polite jobs keep, beside greedy", f"{found['polite_kept']:.3f} of their rate"),
            ("the one that keeps least", f"{found['polite_lowest_kept']:.3f}"),
            ("greedy over a polite job", f"{found['greedy_over_polite']:.2f} times"),
        ]
    return lines


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
