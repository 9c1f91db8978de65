"""Tables of `sumpter bench emulate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sumpter_lab.tables.names import shown
from sumpter_lab.tables.record import Record
from sumpter_lab.tables.table import (
    Table,
    fixed,
    percent,
    pivot,
    significant,
    span,
    table,
)

Row = dict[str, Any]


def _rows(records: Sequence[Record]) -> list[tuple[Record, Row]]:
    return [(record, row) for record in records for row in record.rows]


@table("emulated-share")
def share(records: Sequence[Record]) -> Table:
    """Seconds, share of the optimum and gain over Gloo by n and k."""
    heads = ["n", "k", "seconds", "share of the optimum", "Gloo, s", "gain over Gloo"]
    return Table(
        [*heads, "of the possible gain", "CPU s/GB", "links idle", "cores idle", "steal"],
        [
            [
                str(row["workers"]),
                str(row["servers"]),
                fixed(row["seconds"], 3),
                fixed(row["optimum_fraction"], 3),
                fixed(row["gloo_seconds"], 3),
                fixed(row["gain_over_gloo"], 2),
                fixed(row["gain_ratio"], 3),
                fixed(row["cpu_s_per_gb"], 1),
                percent(row["link_idle_median_workers"]),
                percent(row["cores_idle"]),
                percent(row["cores_steal"]),
            ]
            for _, row in _rows(records)
        ],
    )


@table("emulated-share-by-k")
def share_by_k(records: Sequence[Record]) -> Table:
    """Share of the optimum alone, a column for each k."""
    return pivot(
        ["n"],
        {
            (row["workers"], row["servers"]): fixed(row["optimum_fraction"], 3)
            for _, row in _rows(records)
        },
        lambda workers: [str(workers)],
        lambda servers: f"k = {servers}",
    )


@table("emulated-parameter-server")
def parameter_server(records: Sequence[Record]) -> Table:
    """Beside a parameter server on the CPU machines alone."""
    return Table(
        ["k", "Sumpter, s", "parameter server, s", "its optimum, s"],
        [
            [
                str(row["servers"]),
                fixed(row["seconds"], 3),
                fixed(row["ps_seconds"], 2),
                fixed(row["ps_optimum_seconds"], 2),
            ]
            for _, row in _rows(records)
        ],
    )


@table("emulated-loads")
def loads(records: Sequence[Record]) -> Table:
    """What is named by the page, by k."""
    heads = ["what", "k", "seconds", "share of the optimum", "gain over Gloo"]
    return Table(
        [*heads, "of the possible gain", "CPU s/GB", "links idle", "cores idle", "steal"],
        [
            [
                record.label,
                str(row["servers"]),
                significant(row["seconds"], 4),
                fixed(row["optimum_fraction"], 3),
                fixed(row["gain_over_gloo"], 3),
                fixed(row["gain_ratio"], 3),
                fixed(row["cpu_s_per_gb"], 1),
                percent(row["link_idle_median_workers"]),
                percent(row["cores_idle"]),
                percent(row["cores_steal"]),
            ]
            for record, row in _rows(records)
        ],
    )


@table("emulated-settings")
def settings(records: Sequence[Record]) -> Table:
    """Other settings, beside the default."""
    heads = ["n", "k", "setting", "time over the default's", "range"]
    return Table(
        [*heads, "CPU time over the default's"],
        [
            [
                str(row["workers"]),
                str(row["servers"]),
                f"`{setting}`",
                fixed(found["seconds_ratio"], 3),
                span(found["seconds_ratios"], 3),
                fixed(found["cpu_ratio"], 2),
            ]
            for _, row in _rows(records)
            for setting, found in row["variants"].items()
        ],
    )


@table("emulated-sizes")
def sizes(records: Sequence[Record]) -> Table:
    """Sizes of partitions and chunks; a label says which partitions the default cuts."""
    rows: dict[tuple[str, str], list[str]] = {}
    for record, row in _rows(records):
        default = {"partition_bytes": record.label, "chunk_bytes": record.label} | row["settings"]
        for setting, found in [*row["variants"].items(), ("", row)]:
            used = default | dict([setting.split("=")] if setting else [])
            sizes = used["partition_bytes"], used["chunk_bytes"]
            shown_sizes = [text.replace("KiB", " KiB") for text in sizes]
            figures = [fixed(found["seconds"], 3), fixed(found["cpu_s_per_gb"], 1)]
            # The same sizes in two runs: the first.
            rows.setdefault(sizes, [*shown_sizes, *figures])
    return Table(["partition", "chunk", "seconds", "CPU s/GB"], list(rows.values()))


@table("emulated-racks")
def racks(records: Sequence[Record]) -> Table:
    """Racks behind trunks: with the trees of the plan, and with flat ones."""
    heads = ["r", "N", "k", "oversubscription", "trees", "seconds", "of the plan's time"]
    rows = []
    for _, row in _rows(records):
        workers = row["workers"] // row["racks"]
        machines = workers + row["servers"] // row["racks"]
        over = machines * row["rate_mbit"] / row["trunk_mbit"]
        hubs = row["trunk_bytes_of_flat"] < _HUBS_BELOW
        rows.append(
            [
                str(row["racks"]),
                str(workers),
                str(row["servers"]),
                f"{over:g}:1",
                "rack hubs" if hubs else "flat",
                fixed(row["seconds"], 3),
                fixed(row["optimum_fraction"], 3),
                fixed(row["flat_seconds"], 3),
                fixed(row["gain_over_flat"], 2),
                fixed(row["flat_optimum_seconds"] / row["optimum_seconds"], 2),
                fixed(row["gloo_seconds"], 3),
                fixed(row["trunk_bytes_of_flat"], 3),
                fixed(row["trunk_bytes_of_optimum"], 3),
            ]
        )
    return Table(
        [*heads, "flat, s", "times as fast as flat", "planned", "Gloo, s"]
        + ["bytes over a trunk, of flat", "of the plan"],
        rows,
    )


# With hubs a trunk carries 1/N of the bytes of flat trees.
_HUBS_BELOW = 0.9


@table("emulated-rules")
def rules(records: Sequence[Record]) -> Table:
    """Bytes and goodput of rounds that update, over those of rounds that sum."""
    found = [(row, row["rules"]) for _, row in _rows(records)]
    named = list(found[0][1])
    return Table(
        ["n", "k", *(head for rule in named for head in (f"{shown(rule)}: bytes", "goodput"))],
        [
            [
                str(row["workers"]),
                str(row["servers"]),
                *(
                    fixed(by_rule[rule][figure], 3)
                    for rule in named
                    for figure in ("link_bytes_ratio", "goodput_ratio")
                ),
            ]
            for row, by_rule in found
        ],
    )


@table("emulated-rules-range")
def rules_range(records: Sequence[Record]) -> Table:
    """Goodput of rounds that update over that of sums, with its range, bytes and CPU time."""
    rows = []
    for record, row in _rows(records):
        found = row["rules"].values()
        rows.append(
            [
                record.label,
                str(row["servers"]),
                *(
                    f"{rule['goodput_ratio']:.3f} ({span(rule['goodput_ratios'], 3)})"
                    for rule in found
                ),
                fixed(max(rule["link_bytes_ratio"] for rule in found), 3),
                ", ".join(fixed(rule["cpu_ratio"], 2) for rule in found),
            ]
        )
    named = records[0].rows[0]["rules"]
    return Table(["load", "k", *map(shown, named), "bytes", "CPU time"], rows)


_ORDERED, _SAME = "deterministic=true", "log=warn"


@table("emulated-deterministic")
def deterministic(records: Sequence[Record]) -> Table:
    """The order of ranks beside that of arrival, and the latter beside itself."""
    rows = []
    for _, row in _rows(records):
        ordered, same = row["variants"][_ORDERED], row["variants"][_SAME]
        rows.append(
            [
                str(row["workers"]),
                str(row["servers"]),
                fixed(ordered["seconds_ratio"], 4),
                span(ordered["seconds_ratios"], 3),
                fixed(same["seconds_ratio"], 4),
                fixed(ordered["cpu_ratio"], 2),
                fixed(ordered["lane_memory_ratio"], 2),
            ]
        )
    heads = ["n", "k", "time over the default's", "range", "same again", "CPU time"]
    return Table([*heads, "lanes' memory"], rows)


_CODECS = ("bf16", "int8", "onebit", "auto")


@table("emulated-codecs")
def codecs(records: Sequence[Record]) -> Table:
    """How many times as fast as without a codec, with the range of the rounds."""
    rows = []
    for record, row in _rows(records):
        found = {codec: row["variants"][f"compression={codec}"] for codec in _CODECS}
        rows.append(
            [
                record.label,
                str(row["servers"]),
                fixed(row["seconds"], 3),
                fixed(row["optimum_fraction"], 3),
                *(_times(variant) for variant in found.values()),
                *(fixed(found[codec]["cpu_ratio"], 2) for codec in _CODECS[:3]),
                percent(row["cores_idle"]),
            ]
        )
    named = [f"`{codec}`" for codec in _CODECS]
    cpu = [f"CPU {named[0]}", *named[1:3], "cores idle"]
    return Table(["model", "k", "without, s", "of the optimum", *named, *cpu], rows)


def _times(variant: Row) -> str:
    # From ten times on the ratio of two short rounds has no second decimal.
    faster = [1 / ratio for ratio in variant["seconds_ratios"]]
    places = 1 if 1 / variant["seconds_ratio"] >= 5 else 2
    return f"{1 / variant['seconds_ratio']:.{places}f} ({span(faster, places)})"


@table("emulated-codecs-fast")
def codecs_fast(records: Sequence[Record]) -> Table:
    """The same on faster links, where the cores are nearer to their limit."""
    rows = []
    for _, row in _rows(records):
        times = {
            codec: 1 / row["variants"][f"compression={codec}"]["seconds_ratio"]
            for codec in ("bf16", "int8", "auto")
        }
        rows.append(
            [
                f"{row['rate_mbit']:,.0f}",
                str(row["workers"]),
                str(row["servers"]),
                fixed(row["seconds"], 3),
                fixed(row["optimum_fraction"], 3),
                *(fixed(faster, 2) for faster in times.values()),
                fixed(times["auto"] / max(1.0, times["bf16"], times["int8"]), 3),
                percent(row["cores_idle"]),
            ]
        )
    heads = ["Mb/s", "n", "k", "without, s", "of the optimum", "`bf16`", "`int8`", "`auto`"]
    return Table([*heads, "`auto` over the best", "cores idle"], rows)
