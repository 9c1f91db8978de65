"""What `sumpter bench tune` measured: the speed of each tuner over time, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sumpter.tuning.points import readable
from sumpter_lab.report import theme
from sumpter_lab.report.blocks import Figure, Section, Table
from sumpter_lab.scaffold.results.table import Row
from sumpter_lab.tune.figures import row
from sumpter_lab.tune.report import shaded, speeds, title

_HEADS = {
    "tuner": "tuner",
    "iterations": "iterations",
    "iterations_per_s": "it/s",
    "over_fixed": "over fixed",
    "settled_per_s": "it/s at the end",
    "near_from": "within 2 % of the grid's best from iteration",
    "lost_iterations": "iterations lost",
    "changes": "changes",
    "partition_bytes": "partition at the end",
    "credit_bytes": "credit at the end",
}
_SIZES = ("partition_bytes", "credit_bytes")


def section(name: str, runs: Sequence[Row]) -> Section:
    """A figure for each cluster, and a table of its tuners."""
    clusters: dict[str, list[Row]] = {}
    for run in runs:
        clusters.setdefault(title(run), []).append(run)
    figures, findings = [], []
    for words, on_it in clusters.items():
        rows = [row(run, on_it) for run in on_it]
        figures.append(_figure(words, on_it, rows))
        if compared := ", ".join(_compared(rows)):
            findings.append(f"{words}: in iterations/s, {compared}.")
    notes = ["A line is the median speed of five iterations; what a tuner tries is part of it."]
    return Section("Tuners", name, findings=findings, notes=notes, figures=figures)


def _figure(words: str, runs: Sequence[Row], rows: Sequence[Row]) -> Figure:
    import plotly.graph_objects as go

    plot = go.Figure()
    for index, run in enumerate(runs):
        speed = speeds(run["periods_s"])
        line = {**theme.line(index, width=1.5), "mode": "lines"}
        plot.add_scatter(
            x=list(range(len(speed))),
            y=speed,
            name=theme.plain(run["tuner"]),
            hovertemplate="iteration %{x}: %{y:.3f} it/s",
            **line,
        )
    for first, last in shaded(runs[0]):
        plot.add_vrect(x0=first, x1=last, fillcolor=theme.GREY, opacity=0.2, line_width=0)
    theme.finish(plot, x="iteration", y="iterations/s")
    plot.update_yaxes(rangemode="tozero")
    table = [
        tuple(readable(one[field]) if field in _SIZES else one[field] for field in _HEADS)
        for one in rows
    ]
    tuners = ", ".join(one["tuner"] for one in rows)
    return Figure(
        title=f"Speed over time: {words}",
        alt=f"Iterations in a second by iteration, for {tuners}.",
        plot=plot,
        table=Table("What each tuner came to", tuple(_HEADS.values()), table),
        wide=True,
    )


def _compared(rows: Sequence[Row]) -> Iterator[str]:
    for one in rows:
        if one["over_fixed"] is not None and one["tuner"] != "fixed":
            yield f"{one['tuner']} had {one['over_fixed']:.1%} of fixed"
