"""Rows of figures as a table or a JSON list, and the machine that they are of."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from sumpter import _native
from sumpter_lab.scaffold.results.record import cpu_model
from sumpter_lab.scaffold.results.table import Row


def machine() -> str:
    """What the figures were measured on, in a line."""
    cores = len(os.sched_getaffinity(0))
    return f"{cpu_model()}, {cores} cores, kernels {_native.instruction_set()}"


def busy_note() -> str | None:
    """A warning when others use the cores, because every figure then says more about them."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load < 0.5 * cores:
        return None
    return f"load {load:.1f} on {cores} cores before the start: expect noise"


def print_json(rows: Sequence[Row]) -> None:
    print(json.dumps(rows, indent=2))


def print_table(title: str, rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
    """A table with a column for each key of the rows."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        numeric = any(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    console = Console(highlight=False)
    console.print(table)
    for note in notes:
        console.print(f"  {note}", style="yellow", soft_wrap=True)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
