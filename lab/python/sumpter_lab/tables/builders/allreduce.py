"""Tables of `sumpter bench allreduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from sumpter_lab.tables.names import shown
from sumpter_lab.tables.record import Record
from sumpter_lab.tables.table import Table, fixed, pivot, size, table

Row = dict[str, Any]
_PEER = "gloo"
_MICRO = 1e6


def _cells(
    records: Sequence[Record], cell: Callable[[list[Row], list[Row]], str], peer: bool
) -> dict[tuple[Any, Any], str]:
    """A cell of each n, way and size, from its rows and those of the peer; by the way's name."""
    rows = [row for record in records for row in record.rows]
    found: dict[tuple[int, str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["workers"], row["way"], row["bytes"]), []).append(row)
    return {
        ((workers, way), count): cell(these, found[workers, _PEER, count])
        for (workers, way, count), these in sorted(found.items())
        if peer or way != _PEER
    }


def _by_size(cells: dict[tuple[Any, Any], str]) -> Table:
    return pivot(["n", "interface"], cells, lambda row: [str(row[0]), row[1]], size)


def _median(rows: list[Row], figure: str) -> float:
    return median(row[figure] for row in rows)


@table("allreduce-speed")
def speed(records: Sequence[Record]) -> Table:
    """Speed over Gloo's by size."""
    return _by_size(
        _cells(records, lambda rows, _: fixed(_median(rows, "gain_over_gloo"), 2), peer=False)
    )


@table("allreduce-cpu")
def cpu(records: Sequence[Record]) -> Table:
    """CPU time of an operation on a rank in microseconds, and switches of its threads."""

    def cell(rows: list[Row], _: list[Row]) -> str:
        switches = _median(rows, "context_switches")
        return f"{_MICRO * _median(rows, 'cpu_seconds'):.0f}, {switches:.0f}"

    return _by_size(_cells(records, cell, peer=True))


@table("allreduce-call")
def call(records: Sequence[Record]) -> Table:
    """Microseconds until an asynchronous call returns."""
    return _by_size(
        _cells(records, lambda rows, _: f"{_MICRO * _median(rows, 'call_seconds'):.0f}", peer=True)
    )


def _speed_and_cpu(rows: list[Row], peer: list[Row]) -> str:
    ratio = _median(rows, "cpu_seconds") / _median(peer, "cpu_seconds")
    return f"{_median(rows, 'gain_over_gloo'):.2f}, {ratio:.2f}"


@table("allreduce-large")
def large(records: Sequence[Record]) -> Table:
    """Speed and CPU time over Gloo's, a line for each size."""
    cells = _cells(records, _speed_and_cpu, peer=False)
    by_size = {((workers, count), way): text for ((workers, way), count), text in cells.items()}
    rows = dict(sorted(by_size.items(), key=lambda item: item[0][0]))
    return pivot(["n", "bytes"], rows, lambda row: [str(row[0]), size(row[1])], str)


@table("allreduce-models")
def models(records: Sequence[Record]) -> Table:
    """The gradients of models, beside DDP over Gloo."""
    rows: list[list[str]] = []
    for record in records:
        for model in dict.fromkeys(row["model"] for row in record.rows):
            ways = {row["way"]: row for row in record.rows if row["model"] == model}
            peer = ways.pop(_PEER, None) or ways.pop("gloo-ddp")
            rows.append(
                [
                    str(peer["workers"]),
                    shown(model),
                    fixed(1e3 * peer["seconds"], 1),
                    *(_speed_and_cpu([ways[way]], [peer]) for way in ("push_pull", "ddp")),
                ]
            )
    return Table(["n", "model", "DDP over Gloo, ms", "push_pull", "DDP"], rows)
