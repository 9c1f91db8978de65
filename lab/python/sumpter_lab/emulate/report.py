"""The table of `sumpter bench emulate`, its warnings, and a summary against the targets."""

from __future__ import annotations

from collections.abc import Sequence

from sumpter.launch.figures import format_bytes
from sumpter_lab.scaffold.results.table import Column, Row, figure


def load_name(row: Row) -> str:
    """What was summed."""
    return row["model"] or format_bytes(row["bytes"])


COLUMNS = (
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


# What stands beside these with racks.
TRUNK_COLUMNS = (
    Column("trunk", 7, lambda row: f"{min(row['trunk_goodput_mbit'].values()):.1f}"),
    Column("flat s", 8, figure("flat_seconds", "{:.3f}")),
    Column("flat opt", 8, figure("flat_optimum_seconds", "{:.3f}")),
    Column("of it", 8, figure("flat_optimum_fraction", "{:.4f}")),
    Column("over trunk", 10, lambda row: format_bytes(row["trunk_bytes_mean"]["sumpter"])),
    Column("bytes/flat", 10, figure("trunk_bytes_of_flat", "{:.4f}")),
    Column("bytes/plan", 10, figure("trunk_bytes_of_optimum", "{:.4f}")),
)


def columns_of(row: Row) -> tuple[Column, ...]:
    """The columns of a table whose rows are like this one."""
    return COLUMNS + (TRUNK_COLUMNS if row.get("racks") else ())


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
    lines += [line for row in rows for line in (*_rules(row), *_variants(row), *_trunks(row))]
    bound = sum(1 for row in rows if row.get("cpu_bound"))
    if bound:
        lines.append(f"{bound} of {len(rows)} cells were limited by the cores, not by the links")
    return lines


def _rules(row: Row) -> list[str]:
    """What rounds that update take, of rounds that only sum."""
    where = f"n={row['workers']}, k={row['servers']}, {load_name(row)}"
    lines = []
    for name, found in (row.get("rules") or {}).items():
        low, high = min(found["goodput_ratios"]), max(found["goodput_ratios"])
        goodput = f"{found['goodput_ratio']:.4f} ({low:.4f} to {high:.4f}) of the goodput of sums"
        moved = f"{found['link_bytes_ratio'] or 1:.4f} of their bytes on the links"
        lines.append(
            f"{name} at {where}: {goodput}, {moved}, {found['cpu_ratio']:.3f} of the CPU time"
        )
    return lines


def _variants(row: Row) -> list[str]:
    """What other settings cost, of the time, processor time and memory without them."""
    where = f"n={row['workers']}, k={row['servers']}, {load_name(row)}"
    lines = []
    for name, found in (row.get("variants") or {}).items():
        low, high = min(found["seconds_ratios"]), max(found["seconds_ratios"])
        time = f"{found['seconds_ratio']:.4f} ({low:.4f} to {high:.4f}) of the time"
        memory = f"{found['lane_memory_ratio'] or 1:.2f} of the lanes' memory"
        cpu = f"{found['cpu_ratio']:.3f} of the CPU time"
        lines.append(f"{name} at {where}: {time}, {cpu}, {memory}")
    return lines


def _trunks(row: Row) -> list[str]:
    """What crosses the trunks, of what flat trees and the optimal plan make cross them."""
    if not row.get("racks"):
        return []
    where = f"n={row['workers']}, k={row['servers']}, {load_name(row)}"
    mean = {name: format_bytes(found) for name, found in row["trunk_bytes_mean"].items()}
    beside = "".join(f", {name} {found}" for name, found in mean.items() if name != "sumpter")
    flat = row["flat_optimum_seconds"] / row["optimum_seconds"]
    return [
        f"trunks of {row['racks']} racks at {where}: {mean['sumpter']} each way, "
        f"{row['trunk_bytes_of_flat']:.3f} of the bytes of flat trees, "
        f"{row['trunk_bytes_of_optimum']:.3f} of those of the plan{beside}; by the plan flat trees "
        f"take {flat:.3f} times as long"
    ]


def _worst(rows: Sequence[Row], name: str, what: str) -> list[str]:
    measured = [row for row in rows if row.get(name) is not None]
    if not measured:
        return []
    row = min(measured, key=lambda row: row[name])
    where = f"n={row['workers']}, k={row['servers']}, {load_name(row)}"
    return [f"{what}: {row[name]:.4f} ({where})"]
