"""Rows of figures as a table, a JSON list or a CSV file."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sumpter import _native

Row = dict[str, Any]


def machine() -> str:
    """What the figures were measured on, in a line."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        # Only the name is lost.
        pass
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, kernels {_native.instruction_set()}"


def busy_note() -> str | None:
    """A warning when others use the cores, because every figure then says more about them."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load < 0.5 * cores:
        return None
    return f"load {load:.1f} on {cores} cores before the start: expect noise"


def free_memory_bytes() -> int | None:
    """What could be allocated without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kib[0]) * 1024 if kib else None


def print_json(rows: Sequence[Row]) -> None:
    print(json.dumps(rows, indent=2))


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    """Writes rows, whose keys may differ, under the union of their keys."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)


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
