"""Tables of `sumpter bench replay`, and of what else measures whole iterations."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from sumpter_lab.tables.names import shown
from sumpter_lab.tables.record import Record, rows_of
from sumpter_lab.tables.table import Table, fixed, percent, pivot, table

Row = dict[str, Any]
_PAIRS = (("paced", "off"), ("overlap", "off"), ("overlap", "ddp-gloo"))
_HEADS = {"ddp-gloo": "DDP, Gloo"}


@table("replay-scheduling")
def scheduling(records: Sequence[Record]) -> Table:
    """Share of the bound by scheduling, and how many times as fast one is as another."""
    cells = rows_of(records)
    systems = list(cells[0]["systems"])
    rows = []
    for cell in cells:
        found = cell["systems"]
        rows.append(
            [
                shown(cell["profile"]),
                str(cell["servers"]),
                fixed(cell["ratio"], 1),
                *(percent(found[system]["share_of_bound"], 1) for system in systems),
                *(
                    fixed(found[one]["iterations_per_s"] / found[other]["iterations_per_s"], 3)
                    for one, other in _PAIRS
                ),
            ]
        )
    named = [_HEADS.get(system, system) for system in systems]
    over = [f"{one} over {_HEADS.get(other, other).split(',')[0]}" for one, other in _PAIRS]
    return Table(["profile", "k", "comm/comp", *named, *over], rows)


@table("replay-scales")
def scales(records: Sequence[Record]) -> Table:
    """Share of the bound of the cells that the labels name, by scale."""
    systems = ("off", "paced", "credit", "overlap")
    rows = []
    for record in records:
        servers, ratio = map(float, record.label.split())
        for cell in record.rows:
            if cell["servers"] != servers or round(cell["ratio"], 1) != ratio:
                continue
            found = cell["systems"]
            over = found["overlap"]["iterations_per_s"] / found["off"]["iterations_per_s"]
            rows.append(
                [
                    f"{shown(cell['profile'])} / {cell['scale']:g}",
                    *(percent(found[system]["share_of_bound"], 1) for system in systems),
                    fixed(over, 3),
                ]
            )
    return Table(["", *systems, "overlap over off"], rows)


def _spaced(setting: str) -> str:
    return setting.replace("KiB", " KiB").replace("MiB", " MiB")


@table("replay-surface")
def surface(records: Sequence[Record]) -> Table:
    """Share of the bound with overlap, by partition and credit."""
    return pivot(
        ["partition"],
        {
            (cell["grid"]["partition_bytes"], cell["grid"]["credit_bytes"]): percent(
                cell["systems"]["overlap"]["share_of_bound"], 1
            )
            for cell in rows_of(records)
        },
        lambda partition: [_spaced(partition)],
        lambda credit: f"credit {_spaced(credit)}",
    )


@table("replay-best")
def best(records: Sequence[Record]) -> Table:
    """The worst and the best point of each surface, and the one with the smallest sizes."""
    rows = []
    for record in records:
        shares = {
            (cell["grid"]["partition_bytes"], cell["grid"]["credit_bytes"]): cell["systems"][
                "overlap"
            ]["share_of_bound"]
            for cell in record.rows
        }
        at = max(shares, key=shares.__getitem__)
        first = next(iter(shares))
        cell = record.rows[0]
        rows.append(
            [
                f"{shown(cell['profile'])} / {cell['scale']:g}",
                percent(min(shares.values()), 1),
                percent(shares[at], 1),
                ", ".join(map(_spaced, at)),
                percent(shares[first], 1),
            ]
        )
    smallest = ", ".join(map(_spaced, first))
    return Table(["model", "worst", "best", "where: partition, credit", smallest], rows)


@table("replay-credit")
def credit(records: Sequence[Record]) -> Table:
    """Share of the bound by credit, a column for each system and a figure for each partition."""
    found: dict[tuple[Any, Any], list[str]] = {}
    for cell in rows_of(records):
        for system in ("paced", "overlap"):
            key = cell["grid"]["credit_bytes"], (cell["servers"], system)
            share = 100 * cell["systems"][system]["share_of_bound"]
            found.setdefault(key, []).append(f"{share:.1f}")
    return pivot(
        ["credit"],
        {key: ", ".join(shares) for key, shares in found.items()},
        lambda amount: [_spaced(amount)],
        lambda at: f"k = {at[0]}: {at[1]}",
    )


_PLACES = ("workers", "workers-fused", "servers", "servers-deferred")


@table("replay-optimizer")
def optimizer(records: Sequence[Record]) -> Table:
    """Iterations with the optimizer in the workers and on the servers."""
    rows = []
    for cell in rows_of(records):
        systems = cell["systems"]
        for rule in dict.fromkeys(name.split("@")[0] for name in systems if "@" in name):
            found = {place: systems[f"{rule}@{place}"] for place in _PLACES}
            seconds = {place: found[place]["seconds"] for place in _PLACES}
            bytes_ratio = (
                found["servers"]["sent_bytes_by_all"] / found["workers-fused"]["sent_bytes_by_all"]
            )
            rows.append(
                [
                    shown(cell["profile"]),
                    str(cell["workers"]),
                    str(cell["servers"]),
                    shown(rule),
                    *(fixed(seconds[place], 3) for place in _PLACES),
                    fixed(seconds["workers"] / seconds["servers"], 3),
                    fixed(seconds["workers-fused"] / seconds["servers"], 3),
                    *(fixed(found[place]["cpu_seconds_by_all"], 2) for place in _PLACES[:3]),
                    fixed(bytes_ratio, 3),
                ]
            )
    heads = ["profile", "n", "k", "rule", "workers", "workers, fused", "servers"]
    ratios = ["servers, deferred", "servers : workers", "servers : fused"]
    return Table([*heads, *ratios, "CPU s, workers", "fused", "servers", "bytes"], rows)


_CODECS = ("bf16", "int8", "onebit")


def _by_codec(records: Sequence[Record]) -> dict[tuple[str, int], dict[str, Row]]:
    """The cells of each model and k, by codec."""
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for cell in rows_of(records):
        key = cell["profile"], cell["servers"]
        found.setdefault(key, {})[cell["grid"]["compression"]] = cell
    return found


def _seconds(cell: Row) -> float:
    return cell["systems"]["paced"]["seconds"]


@table("replay-codecs")
def codecs(records: Sequence[Record]) -> Table:
    """Iterations by codec, and how many times as fast as without one."""
    rows = []
    for (profile, servers), cells in _by_codec(records).items():
        without = _seconds(cells["none"])
        rows.append(
            [
                shown(profile),
                str(servers),
                fixed(cells["none"]["compute_seconds"], 3),
                fixed(without, 3),
                *(
                    text
                    for codec in _CODECS
                    for text in (
                        fixed(_seconds(cells[codec]), 3),
                        fixed(without / _seconds(cells[codec]), 2),
                    )
                ),
            ]
        )
    heads = [head for codec in _CODECS for head in (f"`{codec}`, s", "times")]
    return Table(["model", "k", "compute, s", "without, s", *heads], rows)


# An iteration of `auto` that takes longer than this many times its fastest has not measured yet.
_STILL = 1.5


@table("replay-auto")
def auto(records: Sequence[Record]) -> Table:
    """Iterations with `auto`, whose last turn has measured the links."""
    rows = []
    for (profile, servers), cells in _by_codec(records).items():
        turns = cells["auto"]["systems"]["paced"]["periods_s"]
        periods = [period for turn in turns for period in turn]
        before = [period for period in periods if period > _STILL * min(periods)]
        settled, other = median(turns[-1]), _seconds(cells["int8"])
        rows.append(
            [
                shown(profile),
                str(servers),
                fixed(_seconds(cells["none"]), 3),
                fixed(other, 3),
                fixed(settled, 3),
                fixed(other / settled, 3),
                str(len(before)),
                fixed(sum(before), 1),
            ]
        )
    heads = ["model", "k", "without, s", "`int8`, s", "`auto`, s", "`auto` over `int8`"]
    return Table([*heads, "iterations before", "seconds before"], rows)


def _megabytes(count: float) -> float:
    return count / 1e6
