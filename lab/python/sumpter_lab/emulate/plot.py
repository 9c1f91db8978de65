"""Goodput by number of servers, one panel for each number of workers: BytePS' Fig. 12."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sumpter_lab.emulate.report import load_name
from sumpter_lab.scaffold.results.output import save_picture
from sumpter_lab.scaffold.results.table import Row

# What is drawn: the figure of a row, its label, and how.
LINES = (
    ("optimum_seconds", "optimum", {"linestyle": "--", "marker": "x", "color": "black"}),
    ("seconds", "Sumpter", {"marker": "o", "color": "tab:blue"}),
    ("sumpter_ddp_seconds", "Sumpter, DDP", {"marker": "v", "color": "tab:cyan"}),
    ("gloo_seconds", "Gloo", {"marker": "s", "color": "tab:orange"}),
    ("ps_seconds", "CPU machines only (PS)", {"marker": "^", "color": "tab:green"}),
)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Writes the picture: columns are numbers of workers, lines of panels are loads."""
    # The object interface: no window system is asked for, and no global state is left behind.
    from matplotlib.figure import Figure

    loads = list(dict.fromkeys(map(load_name, rows)))
    workers = sorted({row["workers"] for row in rows})
    picture = Figure(figsize=(4 * len(workers) + 1, 3.2 * len(loads) + 0.6), layout="constrained")
    panels = picture.subplots(len(loads), len(workers), squeeze=False)
    for line, load in zip(panels, loads, strict=True):
        for panel, count in zip(line, workers, strict=True):
            cells = [row for row in rows if load_name(row) == load and row["workers"] == count]
            _draw_panel(panel, sorted(cells, key=lambda row: row["servers"]))
            panel.set_title(f"n = {count}, {load}")
    labels: dict[str, Any] = {}
    for panel in panels.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    picture.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=len(labels))
    save_picture(picture, file, 150)


def points(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    """Servers and goodput in Mb/s of tensor, for the rows that have the figure."""
    measured = [row for row in rows if row.get(name)]
    return (
        [row["servers"] for row in measured],
        [row["bytes"] * 8e-6 / row[name] for row in measured],
    )


def _draw_panel(panel: Any, rows: Sequence[Row]) -> None:
    for name, label, style in LINES:
        servers, goodput = points(rows, name)
        if servers:
            panel.plot(servers, goodput, label=label, **style)
    panel.set_xlabel("servers (k)")
    panel.set_ylabel("goodput in Mb/s of tensor")
    panel.set_xticks([row["servers"] for row in rows])
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
