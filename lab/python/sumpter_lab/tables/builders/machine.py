"""Tables of one machine: kernels, codecs, JAX, the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from sumpter_lab.tables.record import Record
from sumpter_lab.tables.table import Table, fixed, percent, pivot, significant, size, table

Row = dict[str, Any]
_TYPES = ("float32", "float64", "int32", "int8", "float16", "bfloat16")
_IN_FLOAT32 = "sum in float32"
_BEFORE_ROUNDING = ("bfloat16", "float16")


def _of(records: Sequence[Record], kind: str) -> list[Row]:
    return [row for record in records for row in record.rows if row["table"] == kind]


@table("kernels")
def kernels(records: Sequence[Record]) -> Table:
    """Sums in cache and out of it, beside the copy and the best rival."""
    by = {(row["dtype"], row["op"], row["place"]): row for row in _of(records, "kernel")}
    wanted = [(dtype, "sum") for dtype in _TYPES]
    wanted += [(dtype, _IN_FLOAT32) for dtype in _BEFORE_ROUNDING]
    rows = []
    for dtype, op in wanted:
        cache, memory = by[dtype, op, "cache"], by[dtype, op, "memory"]
        full = by["float32", "sum", "cache"]["gb_per_s"]
        narrow = dtype in _BEFORE_ROUNDING
        rows.append(
            [
                dtype if op == "sum" else f"{dtype}, {op}",
                fixed(cache["gb_per_s"], 1),
                fixed(cache["gb_per_s"] / full, 2) if narrow else "",
                fixed(cache["over_best_rival"], 2) if op == "sum" else "",
                fixed(memory["gb_per_s"], 1),
                fixed(memory["of_copy_limit"], 2),
                fixed(memory["over_best_rival"], 2) if op == "sum" else "",
            ]
        )
    heads = ["type", "sum, in cache, GB/s", "of float32's", "over the best rival"]
    return Table([*heads, "out of cache, GB/s", "of the copy's", "over the best rival"], rows)


_PLACES = {"cache": "in cache", "memory": "in memory"}


@table("kernels-cycle")
def cycle(records: Sequence[Record]) -> Table:
    """What a lane does with all contributions to a chunk: GB/s, and cores for 100 Gb/s."""
    return pivot(
        ["type"],
        {
            (row["dtype"], (row["place"], row["contributions"])): (
                f"{row['contribution_gb_per_s']:.1f}, {row['cores_for_100_gb_per_s']:.2f}"
            )
            for row in _of(records, "cycle")
        },
        lambda dtype: [dtype],
        lambda at: f"{_PLACES[at[0]]}, {at[1]} contributions",
    )


@table("kernels-codecs")
def codecs(records: Sequence[Record]) -> Table:
    """Gigabytes of float32 a second that a core encodes, decodes and adds."""
    figures = {
        "encode": "encode_gb_per_s",
        "with feedback": "encode_feedback_gb_per_s",
        "decode": "decode_gb_per_s",
        "decode and add": "decode_add_gb_per_s",
        "copy": "copied_gb_per_s",
    }
    return Table(
        ["codec", "times smaller", *figures],
        [
            [
                f"`{row['codec']}`",
                fixed(row["times_smaller"], 1),
                *(
                    # Factors are added as they are: nothing is decoded.
                    ""
                    if (head, row["codec"].split(":")[0]) == _NOT_DECODED
                    else fixed(row[figure], 1)
                    for head, figure in figures.items()
                ),
            ]
            for row in _of(records, "codec")
        ],
    )


_NOT_DECODED = ("decode and add", "powersgd")

_WAYS = {
    "jax": "`sumpter.jax`",
    "jax-cb": "`io_callback`",
    "jax-gloo": "JAX over Gloo",
    "numpy": "`push_pull`",
}


@table("jax")
def jax(records: Sequence[Record]) -> Table:
    """Milliseconds of compiled programs by size in each run, and their CPU time."""
    found: dict[tuple[int, str], list[Row]] = {}
    for record in records:
        for row in record.rows:
            found.setdefault((row["bytes"], row["way"]), []).append(row)
    rows = []
    for count in dict.fromkeys(size_of for size_of, _ in found):
        cells = [size(count)]
        for way in _WAYS:
            runs = found[count, way]
            cells.append(", ".join(significant(1e3 * run["seconds"], 3) for run in runs))
            cells.append(significant(1e3 * median(run["cpu_seconds"] for run in runs), 2))
        rows.append(cells)
    return Table(["bytes", *(head for way in _WAYS.values() for head in (way, "CPU"))], rows)


@table("scaling")
def scaling(records: Sequence[Record]) -> Table:
    """What a coordinator takes by the number of workers."""
    kib = 1024
    rows = []
    for record in records:
        for row in record.rows:
            shares = (
                row["heartbeat_cpu_share"],
                row["training_cpu_share"],
                row["waiting_cpu_share"],
            )
            rows.append(
                [
                    f"{row['members']:,}",
                    fixed(row["join_s"], 2),
                    fixed(row["memory_bytes_per_member"] / kib, 0),
                    ", ".join(percent(share, 1) for share in shares),
                    f"{row['declare_s']:.1f}, {row['declare_cpu_s']:.1f}",
                    f"{row['change_s']:.2f}, {row['change_cpu_s']:.2f}",
                    f"{row['unlike_change_s']:.2f}, {row['unlike_change_cpu_s']:.2f}",
                    fixed(row["plan_bytes"] / kib, 0),
                    fixed(row["placement_ms"], 0),
                ]
            )
    heads = ["workers", "join, s", "KiB a member", "heartbeats: idle, training, waiting"]
    changes = ["table: s, CPU s", "change, alike: s, CPU s", "unlike: s, CPU s"]
    return Table([*heads, *changes, "plan, KiB", "placing, ms"], rows)


@table("costs")
def costs(records: Sequence[Record]) -> Table:
    """CPU time of a worker for one operation by link and settings, and peak memory."""
    runs = [run for record in records for run in record.document]
    kib = 1024
    rows = []
    # The order of turns alternates: that of the first is the table's.
    for kind in dict.fromkeys(run["kind"] for run in runs):
        found = [row for run in runs if run["kind"] == kind for row in run["rows"]]
        peak = max(row["peak_kib"] for row in found if row["mib"] == max(_MIB))
        rows.append([kind, *(_milliseconds(found, mib) for mib in _MIB), f"{peak / kib:.0f} MiB"])
    return Table(["link and settings", *(f"{mib} MiB" for mib in _MIB), "peak memory"], rows)


_MIB = (64, 1)


def _milliseconds(rows: Sequence[Row], mib: int) -> str:
    taken = sorted(1e3 * row["cpu_s"] for row in rows if row["mib"] == mib)
    places = 0 if mib == max(_MIB) else 1
    return f"{median(taken):.{places}f} ms ({taken[0]:.{places}f} to {taken[-1]:.{places}f})"


@table("overhead")
def overhead(records: Sequence[Record]) -> Table:
    """What an observer adds to CPU time and to the time of a step, in pairs of blocks."""
    rows = []
    for record in records:
        cpu, step = (_added(record, figure) for figure in ("CPU ms a step", "step ms"))
        low, _, high = quantiles(cpu, n=4)
        rows.append(
            [
                record.label,
                f"{median(cpu):+.2f} % ({_standard_error(cpu):.2f} %)",
                f"{low:+.1f} to {high:+.1f} %",
                f"{median(step):+.2f} % ({_standard_error(step):.2f} %)",
            ]
        )
    heads = ["observer", "CPU time of all processes, median (standard error)", "quartiles"]
    return Table([*heads, "time of a step (standard error)"], rows)


def _added(record: Record, figure: str) -> list[float]:
    pairs = record.document["pairs"]
    return [100 * (pair["with"][figure] / pair["without"][figure] - 1) for pair in pairs]


def _standard_error(values: Sequence[float]) -> float:
    # Of a median, as `sumpter bench overhead` estimates it: a normal distribution has its quartiles
    # 1.35 standard deviations apart, and a median has 1.25 times the error of a mean.
    low, _, high = quantiles(values, n=4)
    return 1.25 * (high - low) / 1.35 / len(values) ** 0.5
