"""What `sumpter bench emulate` measured: share of the optimum by cell and by link, and gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from sumpter.launch.figures import format_bytes
from sumpter_lab.report import theme
from sumpter_lab.report.blocks import Figure, Section, Table
from sumpter_lab.scaffold.results.table import Row


def section(name: str, rows: Sequence[Row]) -> Section:
    """One section for all cells of a file."""
    rows = sorted(rows, key=_order)
    worst = min(rows, key=lambda row: row["optimum_fraction"])
    findings = [
        f"{len(rows)} cells reach {worst['optimum_fraction']:.1%} of the optimum or more; "
        f"the lowest is {_cell(worst)}{_rate(worst, rows)}."
    ]
    compared = [row for row in rows if row.get("gain_over_gloo") is not None]
    if compared:
        best = max(compared, key=lambda row: row["gain_over_gloo"])
        findings.append(
            f"At best {best['gain_over_gloo']:.2f} times as fast as Gloo ({_cell(best)})."
        )
    figures = [_share(rows), _links(rows), _goodput(rows)]
    return Section(
        title="Share of the optimum",
        source=name,
        findings=findings,
        notes=(
            "The optimum is the time in which the links could carry the same bytes at the goodput "
            "that was measured on them just before. A link's share is the part of that time in "
            "which it was not idle, the mean of both directions.",
        ),
        warnings=[warning for row in rows for warning in _warnings(row)],
        figures=[figure for figure in figures if figure],
        facts=_facts(rows),
    )


def _order(row: Row) -> tuple[str, int, float, int]:
    return (_load(row), row["workers"], row.get("rate_mbit") or 0, row["servers"])


def _load(row: Row) -> str:
    return row.get("model") or format_bytes(row["bytes"])


def _cell(row: Row) -> str:
    return f"n = {row['workers']}, k = {row['servers']}, {_load(row)}"


def _lines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of the same workers, load and links, by servers."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        label = f"{row['workers']} GPU machines, {_load(row)}{_rate(row, rows)}"
        lines.setdefault(label, []).append(row)
    return lines


def _rate(row: Row, rows: Sequence[Row]) -> str:
    """The links' rate, where cells differ in it, and the racks."""
    rates = {one.get("rate_mbit") for one in rows}
    rate = f", {row['rate_mbit']:g} Mb/s" if len(rates) > 1 and row.get("rate_mbit") else ""
    racks = f", {row['racks']} racks behind {row['trunk_mbit']:g} Mb/s" if row.get("racks") else ""
    return rate + racks


def _share(rows: Sequence[Row]) -> Figure:
    import plotly.graph_objects as go

    plot = go.Figure()
    for index, (label, line) in enumerate(_lines(rows).items()):
        plot.add_scatter(
            x=[row["servers"] for row in line],
            y=[row["optimum_fraction"] for row in line],
            name=theme.plain(label),
            hovertemplate="k = %{x}: %{y:.1%}",
            **theme.line(index),
        )
    plot.add_hline(y=1, line={"dash": "dot", "color": theme.GREY, "width": 1.5})
    lowest = min(row["optimum_fraction"] for row in rows)
    theme.finish(plot, x="CPU machines that help (k)", y="share of the optimum")
    plot.update_yaxes(range=[min(0.8, lowest - 0.05), 1.03], tickformat=theme.PERCENT)
    plot.update_xaxes(tickvals=sorted({row["servers"] for row in rows}))
    listed = [
        (
            *(row["workers"], row["servers"], _load(row), row["seconds"]),
            *(row["optimum_seconds"], f"{row['optimum_fraction']:.1%}"),
        )
        for row in rows
    ]
    heads = ("n", "k", "load", "measured (s)", "optimum (s)", "share")
    return Figure(
        title="Share of the optimum by number of helpers",
        alt=f"Share of the optimum in {len(rows)} cells, between {lowest:.1%} and "
        f"{max(row['optimum_fraction'] for row in rows):.1%}.",
        plot=plot,
        table=Table("Share of the optimum", heads, listed),
        note="The axis does not begin at 0." if lowest > 0.05 else "",
    )


def _links(rows: Sequence[Row]) -> Figure | None:
    import plotly.graph_objects as go

    seen = [row for row in rows if row.get("link_idle")]
    if not seen:
        return None
    machines = list(dict.fromkeys(name for row in seen for name in row["link_idle"]))
    machines.sort(key=lambda name: (not name.startswith("gpu"), len(name), name))
    used = [[_used(row, machine) for machine in machines] for row in seen]
    several = len({_load(row) for row in seen}) > 1
    loads = [f" {_load(row)}" if several else "" for row in seen]
    values = [one for row in used for one in row if one is not None]
    labels = [
        f"n={row['workers']} k={row['servers']}{load}{_rate(row, rows)}"
        for row, load in zip(seen, loads, strict=True)
    ]
    # The same cell may have been measured more than once.
    labels = [
        f"{label} ({1 + labels[:index].count(label)})" if label in labels[:index] else label
        for index, label in enumerate(labels)
    ]
    plot = go.Figure(
        go.Heatmap(
            x=[theme.plain(machine) for machine in machines],
            y=[theme.plain(label) for label in labels],
            z=used,
            zmin=min(0.9, math.floor(10 * min(values)) / 10),
            zmax=1,
            colorscale="Cividis",
            xgap=2,
            ygap=2,
            colorbar={
                "orientation": "h",
                "y": 1,
                "yanchor": "bottom",
                "tickformat": theme.PERCENT,
                "thickness": 10,
            },
            hovertemplate="%{y}, %{x}: %{z:.1%}<extra></extra>",
        )
    )
    height = max(220, 150 + 24 * len(seen))
    theme.finish(plot, x="", y="", height=height)
    plot.update_yaxes(autorange="reversed", type="category", showgrid=False)
    plot.update_xaxes(type="category", showgrid=False)
    table = [
        (label, *(None if one is None else f"{one:.1%}" for one in row))
        for label, row in zip(labels, used, strict=True)
    ]
    return Figure(
        title="Share of the optimum by link",
        alt=f"How much of the time each machine's link was in use, from {min(values):.1%} to "
        f"{max(values):.1%}.",
        plot=plot,
        table=Table("Part of the time in which a link was in use", ("cell", *machines), table),
        note="With more helpers than GPU machines the helpers' links rest even at the optimum: the "
        "GPU machines' own links are then the limit.",
    )


def _used(row: Row, machine: str) -> float | None:
    idle = row["link_idle"].get(machine)
    if idle is None:
        return None
    return 1 - fmean((idle["sent"], idle["received"]))


def _goodput(rows: Sequence[Row]) -> Figure | None:
    """Bytes of tensor for a second, by helpers, of the line with most cells."""
    import plotly.graph_objects as go

    line = max(_lines(rows).values(), key=len)
    if len(line) < 2:
        return None
    systems = (
        ("optimum", "optimum_seconds"),
        ("Sumpter", "seconds"),
        ("Gloo", "gloo_seconds"),
        ("CPU machines only (PS)", "ps_seconds"),
    )
    plot, columns = go.Figure(), {}
    for index, (label, field) in enumerate(systems):
        points = {
            row["servers"]: row["bytes"] * 8e-6 / row[field] for row in line if row.get(field)
        }
        if points:
            columns[label] = points
            plot.add_scatter(
                x=list(points),
                y=list(points.values()),
                name=label,
                hovertemplate="k = %{x}: %{y:.1f} Mb/s",
                **theme.line(index),
            )
    where = f"{line[0]['workers']} GPU machines, {_load(line[0])}{_rate(line[0], rows)}"
    theme.finish(plot, x="CPU machines that help (k)", y="Mb/s of tensor")
    plot.update_yaxes(rangemode="tozero")
    plot.update_xaxes(tickvals=[row["servers"] for row in line])
    rows_ = [(k, *(c.get(k) for c in columns.values())) for k in (row["servers"] for row in line)]
    return Figure(
        title=f"Goodput by number of helpers: {where}",
        alt=f"Goodput of {', '.join(columns)} with {where}.",
        plot=plot,
        table=Table("Goodput in Mb/s of tensor", ("k", *columns), rows_),
        note="As figure 12 of the BytePS paper (OSDI 2020).",
    )


def _warnings(row: Row) -> list[str]:
    found = []
    if row.get("cpu_bound"):
        found.append(f"{_cell(row)}: the cores of this machine were the limit, not the links.")
    if row.get("disturbed_rounds"):
        found.append(
            f"{_cell(row)}: others took the cores during {row['disturbed_rounds']} of the rounds "
            "that count."
        )
    return found


def _facts(rows: Sequence[Row]) -> dict[str, object]:
    first = rows[0]
    facts = {
        "links": f"{first['link_goodput_mbit']:.1f} Mb/s of goodput each way",
        "measured": first.get("date"),
        "commit": first.get("commit"),
        "processor": first.get("cpu"),
    }
    return {name: value for name, value in facts.items() if value}
