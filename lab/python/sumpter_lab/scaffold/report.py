"""Rows of measurements as a table for people, as CSV and as a summary against the targets."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumpter._failure import Failure
from sumpter.launch.figures import format_bytes

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its head, its width and the text of a row."""

    head: str
    width: int
    text: Callable[[Row], str]


def figure(name: str, template: str) -> Callable[[Row], str]:
    """A row's figure in the template, or a dash where it was not measured."""

    def text(row: Row) -> str:
        value = row.get(name)
        return "-" if value is None else template.format(value)

    return text


def load_name(row: Row) -> str:
    """What was summed."""
    return row["model"] or format_bytes(row["bytes"])


EMULATE = (
    Column("n", 3, figure("workers", "{}")),
    Column("k", 3, figure("servers", "{}")),
    Column("load", 9, load_name),
    Column("goodput", 8, figure("link_goodput_mbit", "{:.1f}")),
    Column("seconds", 8, figure("seconds", "{:.3f}")),
    Column("of t_opt", 8, figure("optimum_fraction", "{:.4f}")),
    Column("Gloo s", 8, figure("gloo_seconds", "{:.3f}")),
    Column("gain", 7, figure("gain_over_gloo", "{:.4f}")),
    Column("of g_a", 7, figure("gain_ratio", "{:.4f}")),
    Column("PS s", 8, figure("ps_seconds", "{:.3f}")),
    Column("of plain", 8, figure("plain_fraction", "{:.4f}")),
    Column("CPU s/GB", 8, figure("cpu_s_per_gb", "{:.2f}")),
    Column("link idle", 9, figure("link_idle_median_workers", "{:.1%}")),
    Column("resent", 6, figure("retransmits", "{}")),
    Column("core idle", 9, figure("cores_idle", "{:.0%}")),
)

ALLREDUCE = (
    Column("size", 9, lambda row: format_bytes(row["bytes"])),
    Column("way", 9, figure("way", "{}")),
    Column("rounds", 6, figure("rounds", "{}")),
    Column("median us", 11, lambda row: f"{row['seconds'] * 1e6:.1f}"),
    Column("p10", 11, lambda row: f"{row['p10_seconds'] * 1e6:.1f}"),
    Column("p90", 11, lambda row: f"{row['p90_seconds'] * 1e6:.1f}"),
    Column("CPU us", 9, lambda row: f"{row['cpu_seconds'] * 1e6:.1f}"),
    Column("call us", 8, lambda row: f"{row['call_seconds'] * 1e6:.1f}"),
    Column("switches", 8, figure("context_switches", "{:.1f}")),
    Column("Gb/s", 9, figure("goodput_gbps", "{:.4g}")),
    Column("over Gloo", 9, figure("gain_over_gloo", "{:.3f}")),
)


def head_line(columns: Sequence[Column]) -> str:
    """The heads, each above its column."""
    return " ".join(column.head.rjust(column.width) for column in columns)


def row_line(columns: Sequence[Column], row: Row) -> str:
    """One row, its figures under their heads."""
    return " ".join(column.text(row).rjust(column.width) for column in columns)


def warnings_of(row: Row) -> list[str]:
    """What a reader must know before believing a row."""
    where = f"n={row['workers']} k={row['servers']}"
    warnings = []
    if row.get("disturbed_rounds"):
        warnings.append(
            f"{where}: other guests of the host took the cores during {row['disturbed_rounds']} "
            f"of the rounds that count ({row['cores_steal']:.0%} of the time), and links idled "
            "meanwhile: measure again when it is quiet"
        )
    if row.get("cpu_bound"):
        warnings.append(
            f"{where}: the cores were {1 - row['cores_idle']:.0%} busy while links were "
            f"{row['link_idle_median_workers']:.0%} idle, so this is the figure of this machine's "
            f"cores: take --rate-mbit {row['suggested_rate_mbit']:g} or less"
        )
    return warnings


def summary(rows: Sequence[Row]) -> list[str]:
    """The worst cells against what the issue of the limit asks for; cpu_bound ones are named."""
    lines = []
    for name, wanted in (("k = 0", lambda k: k == 0), ("k > 0", lambda k: k > 0)):
        group = [row for row in rows if wanted(row["servers"])]
        lines += _worst(group, "optimum_fraction", f"worst fraction of t_opt at {name}")
        lines += _worst(group, "gain_ratio", f"worst gain over Gloo, of g_a, at {name}")
        lines += _worst(group, "plain_fraction", f"worst fraction of plain sockets at {name}")
    bound = sum(1 for row in rows if row.get("cpu_bound"))
    if bound:
        lines.append(f"{bound} of {len(rows)} cells were limited by the cores, not by the links")
    return lines


def _worst(rows: Sequence[Row], name: str, what: str) -> list[str]:
    measured = [row for row in rows if row.get(name) is not None]
    if not measured:
        return []
    row = min(measured, key=lambda row: row[name])
    where = f"n={row['workers']}, k={row['servers']}, {load_name(row)}"
    return [f"{what}: {row[name]:.4f} ({where})"]


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    """The rows with a head line; what is a list or an object becomes JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        with file.open("w", newline="") as stream:
            table = csv.DictWriter(stream, names, lineterminator="\n")
            table.writeheader()
            table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror}") from error


def check_writable(file: Path | None, option: str) -> None:
    """Raises before a long run if its result could not be written."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise Failure(f"{option} {file}: the folder {file.parent} does not exist")
    if file.is_dir():
        raise Failure(f"{option} {file}: this is a folder; name a file")


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value
