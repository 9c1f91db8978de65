"""The figures of a replay as a table for people and as a file for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sumpter_lab.scaffold.results.document import REPLAY
from sumpter_lab.scaffold.results.figures import BUSY_CORES, STOLEN
from sumpter_lab.scaffold.results.table import Column, Row, figure


def _megabytes(row: Row) -> str:
    return f"{row['sent_bytes_by_all'] / 1e6:.2f}"


def _step_ms(row: Row) -> str:
    return "-" if row["step_seconds"] is None else f"{row['step_seconds'] * 1e3:.2f}"


COLUMNS = (
    Column("profile", 12, figure("profile", "{}")),
    Column("n", 3, figure("workers", "{}")),
    Column("k", 3, figure("servers", "{}")),
    Column("comm/comp", 9, figure("ratio", "{:.2f}")),
    Column("scheduling", 22, figure("system", "{}")),
    Column("s/it", 7, figure("seconds", "{:.4f}")),
    Column("it/s", 8, figure("iterations_per_s", "{:.4f}")),
    Column("quartiles", 16, lambda row: "-".join(f"{q:.4f}" for q in _quartiles(row))),
    Column("of bound", 8, figure("share_of_bound", "{:.1%}")),
    Column("over off", 8, figure("gain_over_off", "{:.3f}")),
    Column("MB/it", 7, lambda row: f"{row['sent_bytes_by_worker'] / 1e6:.2f}"),
    Column("all MB", 7, _megabytes),
    Column("CPU s/it", 8, figure("cpu_seconds_by_all", "{:.3f}")),
    Column("step ms", 7, _step_ms),
    Column("core idle", 9, figure("cores_idle", "{:.0%}")),
)


def lines_of(cell: Row) -> Iterator[Row]:
    """One row for each system of a cell."""
    off = cell["systems"].get("off")
    for name, figures in cell["systems"].items():
        gain = figures["iterations_per_s"] / off["iterations_per_s"] if off else None
        yield {**cell, **figures, "system": name, "gain_over_off": gain}


def about(cell: Row) -> str:
    """What a cell plays and what its links stand for."""
    settings = "".join(f", {name} {value}" for name, value in cell["grid"].items())
    return (
        f"{cell['profile']}, n={cell['workers']}, k={cell['servers']}{settings}: "
        f"{cell['bytes'] / 1e6:.1f} MB in {cell['tensors']} tensors, "
        f"{cell['compute_seconds']:.3f} s of compute, {cell['optimum_seconds']:.3f} s of "
        f"communication at best; sizes / {cell['scale']:g}, times x {cell['slowdown']:.3g}, so the "
        f"links stand for {cell['stands_for_gbps']:.3g} Gb/s"
    )


def warnings_of(cell: Row) -> Iterator[str]:
    """What a reader must know before believing a cell."""
    where = f"n={cell['workers']} k={cell['servers']}"
    systems = cell["systems"].values()
    stolen = max(figures["cores_steal"] or 0.0 for figures in systems)
    if stolen > STOLEN:
        yield (
            f"{where}: other guests of the host took up to {stolen:.0%} of the cores' time: "
            "measure again when it is quiet"
        )
    busy = 1 - min(1.0 if f["cores_idle"] is None else f["cores_idle"] for f in systems)
    if busy > BUSY_CORES:
        yield (
            f"{where}: the cores were up to {busy:.0%} busy, so they may have set the time: run "
            "nothing beside, or take a lower --bandwidth-mbps"
        )


def write(file: Path, cells: list[Row]) -> None:
    """All figures, with every iteration's seconds."""
    REPLAY.write(file, cells)


def _quartiles(row: Row) -> list[float]:
    return row["iterations_per_s_quartiles"]
