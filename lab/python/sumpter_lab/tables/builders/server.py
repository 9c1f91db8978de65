"""Tables of one server and of its tenants: `sumpter bench server`, `stragglers` and `tenants`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import Any

from sumpter_lab.tables.names import shown
from sumpter_lab.tables.record import Record, rows_of
from sumpter_lab.tables.table import Table, fixed, pivot, span, table

Row = dict[str, Any]


def _cells(records: Sequence[Record]) -> Iterator[tuple[list[str], Row]]:
    """Each row, after what says which it is: the tensors, workers and lanes."""
    for record in records:
        for row in record.rows:
            yield [record.label, str(row["workers"]), str(row["lanes"])], row


_IS = ["tensors", "workers", "lanes"]
_THROUGHPUT = {
    "GB/s": ("goodput_gb_per_s", 2),
    "over no summation": ("goodput_ratio", 2),
    "over raw TCP": ("goodput_ratio_to_raw_tcp", 2),
    "over raw TCP that sums": ("goodput_ratio_to_summing_tcp", 2),
    "CPU over raw TCP": ("cpu_ratio_to_raw_tcp", 2),
    "CPU over raw TCP that sums": ("cpu_ratio_to_summing_tcp", 2),
    "server's cores for 100 Gb/s": ("server_cores_for_100_gb_per_s", 1),
}


@table("server-throughput")
def throughput(records: Sequence[Record]) -> Table:
    """Goodput and CPU time of a server, beside servers that do less."""
    return Table(
        [*_IS, *_THROUGHPUT],
        [
            [*which, *(fixed(row[figure], places) for figure, places in _THROUGHPUT.values())]
            for which, row in _cells(records)
        ],
    )


@table("server-deterministic")
def deterministic(records: Sequence[Record]) -> Table:
    """The order of ranks beside the order of arrival."""
    figures = ("deterministic_goodput_ratio", "deterministic_cpu_ratio")
    return Table(
        [*_IS, "throughput over the default's", "CPU time"],
        [
            [*which, *(fixed(row[figure], 3) for figure in figures)]
            for which, row in _cells(records)
        ],
    )


# What a row has of each update rule, beside the ratios to sums in the order of arrival.
_TO_SUMS = "_goodput_ratio_to_deterministic"


@table("server-rules")
def rules(records: Sequence[Record]) -> Table:
    """Goodput of rounds that update over that of rounds that sum, and CPU time in brackets."""
    rows = rows_of(records)
    named = [figure.removesuffix(_TO_SUMS) for figure in rows[0] if figure.endswith(_TO_SUMS)]
    return Table(
        ["workers", "lanes", *map(shown, named)],
        [
            [
                str(row["workers"]),
                str(row["lanes"]),
                *(
                    f"{row[f'{rule}_goodput_ratio']:.2f} ({row[f'{rule}_cpu_ratio']:.2f})"
                    for rule in named
                ),
            ]
            for row in rows
        ],
    )


_PATTERNS = {
    "in step": "none",
    "rank 0 late": "rank 0 by {late:g} s",
    "the last rank late": "the last rank by {late:g} s",
    "each late at random": "each at random, up to {late:g} s",
}
_DEFAULT, _RING = "sumpter", "gloo"


@table("stragglers")
def stragglers(records: Sequence[Record]) -> Table:
    """Seconds after the last rank has begun, beside Gloo's ring, by which ranks are late."""
    rows = []
    (record,) = records
    for row in record.document["rows"]:
        after: dict[str, list[float]] = row["after_last_s"]
        others = [name for name in after if name not in (_DEFAULT, _RING)]
        rows.append(
            [
                _PATTERNS[row["pattern"]].format(late=record.document["asked"]["late_s"]),
                fixed(median(after[_DEFAULT]), 3),
                fixed(median(after[_RING]), 3),
                _ratios(after[_RING], after[_DEFAULT]),
                *(_ratios(after[name], after[_DEFAULT]) for name in others),
            ]
        )
    heads = ["lateness", "Sumpter, s", "Gloo's ring, s", "ring / Sumpter (quartiles)"]
    named = [f"`{name.removesuffix('=true')}` / default (quartiles)" for name in others]
    return Table([*heads, *named], rows)


def _ratios(one: Sequence[float], other: Sequence[float]) -> str:
    """Median and quartiles of what two systems have taken in each round."""
    low, middle, high = quantiles([a / b for a, b in zip(one, other, strict=True)], n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


@table("tenants")
def tenants(records: Sequence[Record]) -> Table:
    """Parts of equal jobs, or of the weights that the page names, and beside a greedy job."""
    rows = []
    for record in records:
        found = record.document
        parts = [job["part"] for job in found["jobs"] if job["part"] is not None]
        rows.append(
            [
                record.label,
                span(parts, 3),
                fixed(found["jain"], 4),
                fixed(found["aggregate_of_alone"], 3),
                fixed(found.get("lowest_polite_part"), 3),
                fixed(found.get("greedy_part"), 3),
            ]
        )
    beside = ["least part beside a greedy job", "the greedy job's"]
    return Table(["jobs", "parts", "Jain's index", "all together, of one alone", *beside], rows)


# What a run of an ablation compares: the choice and the alternative, and their columns.
_PAIRS = {
    "aggregation": (
        "tall aggregation (a core owns its chunks), {threads}",
        "wide (all cores on one buffer)",
        ("tall_gb_per_s", "wide_gb_per_s"),
    ),
    "affinity": (
        "a key belongs to a lane, {threads}",
        "a worker belongs to a lane",
        ("key_to_lane_gb_per_s", "worker_to_lane_gb_per_s"),
    ),
    "fused": (
        "a pass for each contribution, {place}",
        "one pass for three",
        ("three_passes_gb_per_s", "one_pass_gb_per_s"),
    ),
}
_ALIGNED = {"kernel": "kernel_gb_per_s", "receive and add": "receive_and_add_gb_per_s"}


def _compared(row: Row, rows: Sequence[Row]) -> Iterator[tuple[str, str, float, float]]:
    """Choice, alternative, and the rate of each, of one row of an ablation."""
    name = row["ablation"]
    if pair := _PAIRS.get(name):
        choice, other, (mine, theirs) = pair
        threads = f"{row.get('threads')} thread{'s' * (row.get('threads') != 1)}"
        yield choice.format(threads=threads, place=row.get("place")), other, row[mine], row[theirs]
    elif name == "alignment" and row is not rows[0]:
        for what, figure in _ALIGNED.items():
            of = f"{row['offset_bytes']} bytes off"
            yield f"buffers on a page: {what}", of, rows[0][figure], row[figure]
    elif name == "connections" and row is not rows[0]:
        rates = (rows[0]["goodput_gb_per_s"], row["goodput_gb_per_s"])
        yield "one connection of a pair", f"{row['connections']} connections", *rates


@table("ablations")
def ablations(records: Sequence[Record]) -> Table:
    """Choices of the design beside their alternatives."""
    return Table(
        ["choice", "alternative", "choice, GB/s", "alternative, GB/s", "gain"],
        [
            [choice, other, fixed(mine, 2), fixed(theirs, 2), fixed(mine / theirs, 2)]
            for record in records
            for row in record.rows
            for choice, other, mine, theirs in _compared(row, record.rows)
        ],
    )


@table("ablations-optimizers")
def optimizers(records: Sequence[Record]) -> Table:
    """Rates of update rules over that of summation, both on one core."""
    rows = [
        row for row in rows_of(records) if row["server_runs"] != "sum" and int(row["threads"]) == 1
    ]
    return pivot(
        ["a server runs"],
        {(row["server_runs"], row["threads"]): fixed(row["of_summation"], 2) for row in rows},
        lambda name: [name],
        lambda threads: f"{threads} thread{'s' * (threads != 1)}",
    )
