"""What a trace shows of one step: who did what when, what was waited for, and how full links were.

A timeline of thousands of slices would be slow to open and no clearer, so slices of one lane and
activity that lie closer together than a pixel are drawn as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sumpter.launch.figures import format_bytes, format_seconds
from sumpter_lab.report import theme
from sumpter_lab.report.blocks import Figure, Section, Table
from sumpter_lab.report.errors import ReportError

if TYPE_CHECKING:
    from sumpter.trace import Explanation, Slice, Trace

# In drawing order: what is long and thin lies under what is short.
ACTIVITIES = {
    "step": theme.INK,
    "queued": theme.GREY,
    "waiting": theme.AMBER,
    "sending": theme.BLUE,
    "receiving": theme.SKY,
    "summing": theme.GREEN,
    "copying": theme.PURPLE,
}
_THIN = {"step", "queued", "waiting"}
_LANES = 48
PIXELS = 1500


@dataclass(frozen=True)
class Window:
    """The part of a trace that is drawn."""

    label: str
    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Bar:
    """One slice, or several that lie together."""

    begin_s: float
    end_s: float
    words: str


def section(name: str, trace: Trace, step: int | None, bandwidth_gbps: float | None) -> Section:
    """The timeline of a step (the last one by default), waiting by cause, use of links."""
    explanations = _explanations(trace, step)
    shown = max((one.step for one in explanations), default=step)
    explained = [one for one in explanations if one.step == shown]
    window = _window(trace, shown, explained)
    slices = [one for one in trace.slices if one.end_s > window.begin_s]
    slices = [one for one in slices if one.begin_s < window.end_s]
    figures = [_timeline(trace, slices, window)]
    if explanations:
        figures.append(_causes(explanations))
    figures += [figure for figure in (_links(slices, window, bandwidth_gbps),) if figure]
    clocks = trace.clock_error_s
    return Section(
        title=f"Timeline: {trace.run}",
        source=name,
        findings=_in_short(explained),
        notes=(f"{window.label} lasted {format_seconds(window.duration_s)}.",),
        lead=[_in_words(explained)] if explained else (),
        figures=figures,
        tables=[_time_by_activity(slices, window)],
        facts={
            "processes": len({one.process for one in trace.slices}),
            "slices": len(trace.slices),
            "clocks agree to within": format_seconds(max(clocks.values())) if clocks else "-",
        },
    )


def _explanations(trace: Trace, step: int | None) -> tuple[Explanation, ...]:
    from sumpter.trace import explain

    if step is None and not any(one.activity == "step" for one in trace.slices):
        return ()
    found = explain(trace, step)
    if step is not None and not found:
        known = sorted({one.step for one in explain(trace)})
        listed = ", ".join(map(str, known)) or "none"
        raise ReportError(f"--step {step}: expected a step of the trace: {listed}")
    return found


def _in_short(explained: Sequence[Explanation]) -> list[str]:
    """The slowest rank of a step, and what it waited for most."""
    if not explained:
        return []
    slowest = max(explained, key=lambda one: one.duration_s)
    return [sentence.strip().rstrip(".") + "." for sentence in slowest.sentences[:3]]


def _in_words(explained: Sequence[Explanation]) -> Table:
    """The two largest causes of each rank; the table of causes has all of them."""
    rows = []
    for one in explained:
        causes = sorted(one.shares.items(), key=lambda item: -item[1])[:2]
        cells = [part for cause, share in causes for part in (cause, f"{share:.1%}")]
        rows.append((one.rank, 1e3 * one.duration_s, *cells, *[None] * (4 - len(cells))))
    heads = ("rank", "ms", "largest cause", "its part", "next cause", "its part")
    return Table(f"Step {explained[0].step} by rank", heads, rows)


def _window(trace: Trace, step: int | None, explained: Sequence[Explanation]) -> Window:
    """From the first begin to the last end of the step over all processes."""
    of_step = [one for one in trace.slices if one.activity == "step" and one.round == step]
    if of_step and step is not None:
        begin = min(one.begin_s for one in of_step)
        return Window(f"Step {step}", begin, max(one.end_s for one in of_step))
    begin = min(one.begin_s for one in trace.slices)
    end = max(one.end_s for one in trace.slices)
    label = f"The trace, with step {step}," if explained else "The trace"
    return Window(label, begin, end)


def _timeline(trace: Trace, slices: Sequence[Slice], window: Window) -> Figure:
    import plotly.graph_objects as go

    lanes = _lanes(slices)
    kept = dict(list(lanes.items())[:_LANES])
    names = {lane: theme.plain(_lane_name(lane), 34) for lane in kept}
    plot = go.Figure()
    present = {one.activity for one in slices}
    known = [name for name in ACTIVITIES if name in present]
    for activity in known + sorted(present - set(ACTIVITIES)):
        bars = [
            (names[lane], bar)
            for lane, members in kept.items()
            for bar in _merged([one for one in members if one.activity == activity], window)
        ]
        if bars:
            plot.add_bar(
                y=[name for name, _ in bars],
                base=[1e3 * (bar.begin_s - window.begin_s) for _, bar in bars],
                x=[1e3 * (bar.end_s - bar.begin_s) for _, bar in bars],
                customdata=[bar.words for _, bar in bars],
                hovertemplate="%{customdata}<br>%{base:.3f} ms, for %{x:.3f} ms<extra></extra>",
                name=theme.plain(activity),
                orientation="h",
                width=0.3 if activity in _THIN else 0.75,
                marker={"color": ACTIVITIES.get(activity, theme.VERMILION), "line": {"width": 0}},
            )
    height = theme.rows_height(len(kept))
    theme.finish(plot, x="ms since the step began", y="", height=height, barmode="overlay")
    order = list(names.values())[::-1]
    plot.update_yaxes(categoryorder="array", categoryarray=order, type="category")
    plot.update_xaxes(range=[0, 1e3 * window.duration_s])
    left_out = len(lanes) - len(kept)
    note = f"{left_out} lanes with less to do are left out. " if left_out else ""
    return Figure(
        title=f"{window.label}: who did what when",
        alt=f"Timeline of {len(kept)} lanes of {len({lane[0] for lane in kept})} processes over "
        f"{format_seconds(window.duration_s)}.",
        plot=plot,
        table=_lane_table(kept),
        note=f"{note}Slices closer together than a pixel are drawn as one. Drag to zoom in, "
        "double-click to zoom out.",
        wide=True,
    )


def _lanes(slices: Iterable[Slice]) -> dict[tuple[str, str], list[Slice]]:
    """Slices by process and track: the busiest tracks first to be kept, sorted as shown."""
    lanes: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    for one in slices:
        lanes[one.process, one.track].append(one)
    busy = sorted(lanes, key=lambda lane: -sum(s.end_s - s.begin_s for s in lanes[lane]))
    shown = [*sorted(busy[:_LANES]), *busy[_LANES:]]
    return {lane: lanes[lane] for lane in shown}


def _lane_name(lane: tuple[str, str]) -> str:
    return f"{lane[0]} {lane[1]}"


def _merged(slices: Sequence[Slice], window: Window) -> list[Bar]:
    """Bars by time within the window; what lies together becomes one."""
    gap_s = window.duration_s / PIXELS
    bars: list[tuple[float, float, list[Slice]]] = []
    for one in sorted(slices, key=lambda one: one.begin_s):
        begin, end = max(one.begin_s, window.begin_s), min(one.end_s, window.end_s)
        small = bool(bars) and min(end - begin, bars[-1][1] - bars[-1][0]) < gap_s
        if bars and (begin < bars[-1][1] or (small and begin - bars[-1][1] < gap_s)):
            first, last, members = bars[-1]
            bars[-1] = (first, max(last, end), [*members, one] if len(members) < 4 else members)
        else:
            bars.append((begin, end, [one]))
    return [Bar(begin, end, _words(members)) for begin, end, members in bars]


def _words(slices: Sequence[Slice]) -> str:
    """What a bar is, for the box beside the pointer."""
    lines = []
    for one in slices[:3]:
        parts = [one.activity, one.tensor, f"round {one.round}" if one.round is not None else None]
        parts.append(format_bytes(one.bytes) if one.bytes is not None else None)
        parts.append(f"peer {one.peer}" if one.peer else None)
        lines.append(theme.plain(", ".join(part for part in parts if part)))
    return "<br>".join([*lines, "and more"] if len(slices) > 3 else lines)


def _lane_table(lanes: dict[tuple[str, str], list[Slice]]) -> Table:
    rows = []
    for (process, track), slices in lanes.items():
        for activity in sorted({one.activity for one in slices}):
            of_it = [one for one in slices if one.activity == activity]
            total = sum(one.bytes or 0 for one in of_it)
            busy_ms = 1e3 * _union_s((one.begin_s, one.end_s) for one in of_it)
            size = format_bytes(total) if total else None
            rows.append((process, track, activity, len(of_it), busy_ms, size))
    heads = ("process", "track", "activity", "slices", "ms", "bytes")
    return Table("What each lane did in this time", heads, rows)


def _causes(explanations: Sequence[Explanation]) -> Figure:
    """The mean over the steps of each rank, and each step in the table."""
    import plotly.graph_objects as go

    ranks = sorted({one.rank for one in explanations})
    causes = sorted({cause for one in explanations for cause in one.shares})
    mean = {
        cause: [
            _mean([one.shares.get(cause, 0.0) for one in explanations if one.rank == rank])
            for rank in ranks
        ]
        for cause in causes
    }
    causes.sort(key=lambda cause: -sum(mean[cause]))
    plot = go.Figure()
    for index, cause in enumerate(causes):
        plot.add_bar(
            y=[f"rank {rank}" for rank in ranks],
            x=mean[cause],
            name=theme.plain(cause),
            orientation="h",
            hovertemplate=f"{theme.plain(cause)}: %{{x:.1%}}<extra></extra>",
            marker={
                "color": theme.color(index),
                "pattern": theme.pattern(index),
            },
        )
    height = theme.rows_height(len(ranks))
    theme.finish(plot, x="part of the step", y="", height=height, barmode="stack")
    plot.update_xaxes(tickformat=theme.PERCENT, range=[0, 1])
    plot.update_yaxes(autorange="reversed", type="category")
    rows = [
        (one.step, one.rank, 1e3 * one.duration_s, *(one.shares.get(c, 0.0) for c in causes))
        for one in explanations
    ]
    rows = [(*row[:3], *(f"{share:.1%}" for share in row[3:])) for row in rows]
    largest = causes[0] if causes else "nothing"
    steps = len({one.step for one in explanations})
    return Figure(
        title="What a step waited for",
        alt=f"Causes of the duration of a step by rank, over {steps} steps; the largest is "
        f"{largest}.",
        plot=plot,
        table=Table("Causes by step and rank", ("step", "rank", "ms", *causes), rows),
        note=f"The mean of {steps} steps: the critical path of each, by cause."
        if steps > 1
        else "",
    )


def _links(slices: Sequence[Slice], window: Window, bandwidth_gbps: float | None) -> Figure | None:
    """How much each process sent and received; of its link, where the bandwidth is given."""
    import plotly.graph_objects as go

    moved: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in slices:
        if one.activity in ("sending", "receiving") and one.bytes and not _is_local(one):
            moved[one.process][one.activity] += one.bytes
    if not moved or window.duration_s <= 0:
        return None
    processes = sorted(moved)
    scale = 8e-9 / window.duration_s
    unit, form = "Gb/s over the time shown", ".4g"
    if bandwidth_gbps is not None:
        scale, unit, form = scale / bandwidth_gbps, f"of {bandwidth_gbps:g} Gb/s", ".1%"
    plot = go.Figure()
    for index, activity in enumerate(("sending", "receiving")):
        plot.add_bar(
            y=[theme.plain(process, 24) for process in processes],
            x=[moved[process][activity] * scale for process in processes],
            name=activity,
            orientation="h",
            hovertemplate=f"%{{y}}, {activity}: %{{x:{form}}}<extra></extra>",
            marker={
                "color": (theme.BLUE, theme.SKY)[index],
                "pattern": theme.pattern(index),
            },
        )
    height = theme.rows_height(2 * len(processes))
    theme.finish(plot, x=unit, y="", height=height, barmode="group")
    plot.update_yaxes(autorange="reversed", type="category")
    if bandwidth_gbps is not None:
        plot.update_xaxes(tickformat=theme.PERCENT)
    rows = [
        (
            process,
            format_bytes(moved[process]["sending"]),
            format_bytes(moved[process]["receiving"]),
            *(f"{moved[process][way] * scale:{form}}" for way in ("sending", "receiving")),
        )
        for process in processes
    ]
    heads = ("process", "sent", "received", f"sending, {unit}", f"receiving, {unit}")
    return Figure(
        title="Share of the optimum by link" if bandwidth_gbps else "Use of links",
        alt=f"Bytes that {len(processes)} processes sent and received, {unit}.",
        plot=plot,
        table=Table("Use of links", heads, rows),
        note="No step can be shorter than its fullest link needs, so the longest bar is the share "
        "of the optimum that this step reached for the bytes that it moved."
        if bandwidth_gbps
        else "With --bandwidth-gbps these become shares of what the links can carry.",
    )


def _is_local(one: Slice) -> bool:
    """Whether the other end is in the same process: such bytes cross no link."""
    return one.peer is not None and f"{one.process} ".startswith(f"{one.peer} ")


def _time_by_activity(slices: Sequence[Slice], window: Window) -> Table:
    """The time in which a process did something of a kind at least once, whatever else it did."""
    times: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for one in slices:
        begin, end = max(one.begin_s, window.begin_s), min(one.end_s, window.end_s)
        times[one.process][one.activity].append((begin, end))
    activities = [name for name in ACTIVITIES if any(name in t for t in times.values())]
    rows = [
        (
            process,
            *(f"{_union_s(of_it[name]) / window.duration_s:.1%}" for name in activities),
        )
        for process, of_it in sorted(times.items())
        if window.duration_s > 0
    ]
    return Table(
        "Part of the time shown in which a process was busy", ("process", *activities), rows
    )


def _union_s(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what the spans cover together."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
