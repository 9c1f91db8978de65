"""What `sumpter reproduce` found: the verdicts of all cases, and a section for each paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sumpter_lab.report import theme
from sumpter_lab.report.blocks import Figure, Section, Table
from sumpter_lab.reproduce.case import PAPERS, plain
from sumpter_lab.scaffold.results.table import Row

_HEADS = ("case", "claim", "the paper's", "ours", "verdict")
_NOTE = (
    "A claim is judged by a condition on the figures. Pure models and virtual time give the same "
    "figures on every machine; the rest was measured when the files were written."
)


def sections(name: str, cases: Sequence[Row]) -> Iterator[Section]:
    """One for each paper that the cases are of, in the order of the listing."""
    known = [paper for paper in PAPERS if any(case["paper"] == paper for case in cases)]
    others = {case["paper"]: None for case in cases if case["paper"] not in PAPERS}
    for paper in (*known, *others):
        yield _section(name, paper, [case for case in cases if case["paper"] == paper])


def _section(name: str, paper: str, cases: Sequence[Row]) -> Section:
    counts = Counter(case["verdict"] for case in cases)
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    rows = [
        (case["name"] if number == 0 else "", *(claim[field] for field in _FIELDS))
        for case in cases
        for number, claim in enumerate(case["claims"])
    ]
    about = [
        (case["name"], case["place"], case["how"], case["verdict"], plain(case["why"], pages=False))
        for case in cases
    ]
    declared = [
        (case["name"], plain(note, pages=False)) for case in cases for note in case["declared"]
    ]
    tables = [
        Table("Claims", _HEADS, rows),
        Table("Cases", ("case", "in the paper", "how", "verdict", "where ours differs"), about),
    ]
    if declared:
        tables.append(Table("Assumed, fitted and bounds", ("case", "note"), declared))
    return Section(
        title=paper,
        source=name,
        findings=(f"{len(cases)} cases: {found}.",),
        notes=(_NOTE,),
        lead=tables,
        figures=[_figure(case, plot) for case in cases for plot in case["plots"]],
    )


_FIELDS = ("text", "paper", "ours", "verdict")


def _figure(case: Row, plot: Mapping[str, Any]) -> Figure:
    import plotly.graph_objects as go

    drawn = go.Figure()
    values = list(dict.fromkeys(x for line in plot["lines"] for x in line["x"]))
    for index, line in enumerate(plot["lines"]):
        label = theme.plain(line["label"])
        color = theme.GREY if line["reference"] else theme.color(index)
        if plot["bars"]:
            # Horizontal: readable names on a phone too.
            names = [theme.plain(one, 30) for one in line["x"]]
            marker = {"color": color, "pattern": theme.pattern(index)}
            drawn.add_bar(y=names, x=line["y"], name=label, orientation="h", marker=marker)
        else:
            style = theme.line(index)
            style["line"]["color"] = style["marker"]["color"] = color
            drawn.add_scatter(x=line["x"], y=line["y"], name=label, **style)
    x, y = theme.plain(plot["x"]), theme.plain(plot["y"])
    if plot["bars"]:
        height = theme.rows_height(len(values) * len(plot["lines"]))
        theme.finish(drawn, x=y, y=x, height=height, barmode="group")
        drawn.update_yaxes(autorange="reversed")
    else:
        theme.finish(drawn, x=x, y=y)
        if plot["from_zero"]:
            drawn.update_yaxes(rangemode="tozero")
        if plot["log_x"]:
            drawn.update_xaxes(type="log", tickvals=values, ticktext=[f"{x:g}" for x in values])
    columns = {
        line["label"]: dict(zip(line["x"], line["y"], strict=True)) for line in plot["lines"]
    }
    rows = [(x, *(column.get(x) for column in columns.values())) for x in values]
    labels = ", ".join(columns)
    return Figure(
        title=f"{case['name']}: {plot['title']}",
        alt=f"{plot['y']} by {plot['x'] or 'case'}: {labels}.",
        plot=drawn,
        table=Table(plot["title"], (plot["x"] or "of", *columns), rows),
    )
