"""Rows of figures as a table or a JSON list, and the machine that they are of."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence

from sumpter import _native
from sumpter_lab.scaffold.network import counters
from sumpter_lab.scaffold.results.record import cpu_model
from sumpter_lab.scaffold.results.table import Row

# Before a measurement: how long others are watched, and the share of the cores' time from which on
# they are mentioned.
_SAMPLE_S = 0.5
_BUSY_SHARE = 0.1


def machine() -> str:
    """What the figures were measured on, in a line."""
    cores = len(os.sched_getaffinity(0))
    return f"{cpu_model()}, {cores} cores, kernels {_native.instruction_set()}"


def busy_note() -> str | None:
    """A warning when others use the cores, because every figure then says more about them. What ran
    before and has ended, such as another measurement, is not counted: the load average has it."""
    share = busy_share(_SAMPLE_S)
    if share < _BUSY_SHARE:
        return None
    return f"{share:.0%} of the cores' time was in use before the start: expect noise"


def busy_share(seconds: float) -> float:
    """The share of the time of all cores that is used within so many seconds."""
    before = counters.core_ticks()
    time.sleep(seconds)
    ticks = counters.core_ticks() - before
    return 1.0 - ticks.idle / ticks.total if ticks.total else 0.0


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
