"""Tables of `sumpter bench tune` and `bench regret`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from sumpter_lab.tables.record import Record
from sumpter_lab.tables.table import Table, fixed, percent, pivot, table

Row = dict[str, Any]


def _rows(records: Sequence[Record]) -> list[Row]:
    return [row for record in records for row in record.document["rows"]]


# The columns of a tuner's run, by the label of its record: all, or those of a changing cluster.
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "tuner": lambda row: f"`{row['tuner']}`",
    "iterations/s": lambda row: fixed(row["iterations_per_s"], 3),
    "over `fixed`": lambda row: fixed(row["over_fixed"], 3),
    "once settled": lambda row: fixed(row["settled_per_s"], 3),
    "near best from": lambda row: str(row["near_from"]),
    "iterations lost": lambda row: fixed(row["lost_iterations"], 1),
    "changes": lambda row: str(row["changes"]),
    "stolen": lambda row: percent(row["cores_steal"], 1),
}
_STILL = tuple(head for head in _COLUMNS if head != "stolen")
_CHANGING = ("tuner", "iterations/s", "over `fixed`", "changes", "stolen")


def _tuned(records: Sequence[Record], heads: Sequence[str]) -> Table:
    return Table(heads, [[_COLUMNS[head](row) for head in heads] for row in _rows(records)])


@table("tuners")
def tuners(records: Sequence[Record]) -> Table:
    """What each tuner made of a job on a cluster that stays as it is."""
    return _tuned(records, _STILL)


@table("tuners-changing")
def tuners_changing(records: Sequence[Record]) -> Table:
    """What each tuner made of a job whose cluster changes."""
    return _tuned(records, _CHANGING)


@table("regret")
def regret(records: Sequence[Record]) -> Table:
    """Regret of each tuner over all cells, with its search and without."""
    figures = ("median", "p90", "worst")
    rows = [
        [
            f"`{row['tuner']}`",
            *(percent(row[figure], 2) for figure in figures),
            percent(row["best"]),
            *(percent(row[f"settled_{figure}"], 2) for figure in figures),
            f"{row['changes']:.2g}",
        ]
        for row in _rows(records)
    ]
    heads = ["tuner", "regret: median", "p90", "worst", "best of all", "settled: median"]
    return Table([*heads, "p90", "worst", "changes"], rows)


@table("regret-by-link")
def regret_by_link(records: Sequence[Record]) -> Table:
    """Regret of the default by link and number of GPU machines: median and worst."""
    found: dict[tuple[Any, Any], list[float]] = {}
    for record in records:
        for played in record.document["played"]:
            if played["tuner"] == "fixed":
                cell = played["cell"]
                key = cell["gbps"], cell["workers"]
                found.setdefault(key, []).append(played["regret"])
    return pivot(
        ["link"],
        {
            key: f"{100 * median(regrets):.2f}, {100 * max(regrets):.1f} %"
            for key, regrets in sorted(found.items())
        },
        lambda gbps: [f"{gbps:g} Gb/s"],
        lambda workers: f"n = {workers}",
    )
