"""What the other benches measured: latency, kernels, a server, ablations, replays, jobs, faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sumpter.launch.figures import format_bytes
from sumpter_lab.report import theme
from sumpter_lab.report.blocks import Cell, Figure, Section, Table
from sumpter_lab.scaffold.results import schema
from sumpter_lab.scaffold.results.table import Row

_MACHINE = {"measured": "date", "commit": "commit", "processor": "cpu"}
_SYSTEM = {
    "off": "no schedule",
    "paced": "credit",
    "priority": "priority",
    "credit": "priority and credit",
    "overlap": "priority, credit, overlap",
    "ddp-gloo": "DDP over Gloo",
}
# So many cells have a sentence each in the summary; of more it names the lowest.
_CELLS_LISTED = 3


def _facts(rows: Sequence[Row]) -> dict[str, Any]:
    found = {label: rows[0].get(name) for label, name in _MACHINE.items()}
    return {label: value for label, value in found.items() if value}


def _bars(
    title: str,
    labels: Sequence[str],
    series: dict[str, Sequence[float | None]],
    unit: str,
    *,
    note: str = "",
    percent: bool = False,
) -> Figure:
    """Horizontal bars: readable names on a phone too."""
    import plotly.graph_objects as go

    form = ".1%" if percent else ".4g"
    plot = go.Figure()
    for index, (label, values) in enumerate(series.items()):
        plot.add_bar(
            y=[theme.plain(one, 40) for one in labels],
            x=values,
            name=theme.plain(label),
            orientation="h",
            hovertemplate=f"%{{y}}, {theme.plain(label)}: %{{x:{form}}}<extra></extra>",
            marker={
                "color": theme.color(index),
                "pattern": theme.pattern(index),
            },
        )
    height = theme.rows_height(len(labels) * max(1, len(series)))
    theme.finish(plot, x=unit, y="", height=height, barmode="group", showlegend=len(series) > 1)
    plot.update_yaxes(autorange="reversed", type="category")
    plot.update_xaxes(rangemode="tozero", **({"tickformat": theme.PERCENT} if percent else {}))
    rows = [
        (label, *(_shown(values[index], percent) for values in series.values()))
        for index, label in enumerate(labels)
    ]
    known = [value for values in series.values() for value in values if value is not None]
    return Figure(
        title=title,
        alt=f"{title}: {', '.join(series)} for {len(labels)} cases, from {min(known):.4g} to "
        f"{max(known):.4g}.",
        plot=plot,
        table=Table(f"{title} ({unit})", ("case", *series), rows),
        note=note,
    )


def _shown(value: float | None, percent: bool) -> Cell:
    return f"{value:.1%}" if percent and value is not None else value


def allreduce(name: str, rows: Sequence[Row]) -> Section:
    """Latency by size of each way."""
    import plotly.graph_objects as go

    plot = go.Figure()
    ways = list(dict.fromkeys(row["way"] for row in rows))
    for index, way in enumerate(ways):
        line = sorted((row for row in rows if row["way"] == way), key=lambda row: row["bytes"])
        plot.add_scatter(
            x=[row["bytes"] for row in line],
            y=[1e3 * row["seconds"] for row in line],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [1e3 * (row["p90_seconds"] - row["seconds"]) for row in line],
                "arrayminus": [1e3 * (row["seconds"] - row["p10_seconds"]) for row in line],
                "thickness": 1,
            },
            name=theme.plain(way),
            hovertemplate="%{x} bytes: %{y:.3f} ms",
            **theme.line(index),
        )
    theme.finish(plot, x="size", y="ms")
    sizes = sorted({row["bytes"] for row in rows})
    plot.update_xaxes(type="log", tickvals=sizes, ticktext=[format_bytes(size) for size in sizes])
    plot.update_yaxes(type="log", dtick=1)
    table = [
        (
            *(row["workers"], format_bytes(row["bytes"]), row["way"]),
            *(1e3 * row[field] for field in ("seconds", "p10_seconds", "p90_seconds")),
            row.get("goodput_gbps"),
        )
        for row in rows
    ]
    heads = ("n", "size", "way", "median (ms)", "10 %", "90 %", "Gb/s")
    figure = Figure(
        title="Latency of an all-reduce by size",
        alt=f"Median latency of {', '.join(ways)} for sizes from {format_bytes(sizes[0])} to "
        f"{format_bytes(sizes[-1])}.",
        plot=plot,
        table=Table("Latency by size", heads, table),
        note="Lines are medians, whiskers the 10th and 90th percentile; both axes are logarithmic.",
    )
    workers = ", ".join(str(n) for n in sorted({row["workers"] for row in rows}))
    return Section(f"All-reduce, {workers} workers", name, figures=[figure], facts=_facts(rows))


def sums(name: str, rows: Sequence[Row]) -> Section:
    """Speed of the kernels beside NumPy's, PyTorch's and a copy."""
    figures = []
    kernels = [row for row in rows if row["table"] == "kernel" and row.get("gb_per_s")]
    for place in dict.fromkeys(row["place"] for row in kernels):
        here = [row for row in kernels if row["place"] == place]
        fields = {
            "Sumpter": "gb_per_s",
            "torch": "torch_gb_per_s",
            "NumPy": "numpy_gb_per_s",
            "copy": "copy_gb_per_s",
        }
        series = {label: [row.get(field) for row in here] for label, field in fields.items()}
        labels = [f"{row['dtype']} {row['op']}" for row in here]
        figures.append(_bars(f"Kernels, operands in {place}", labels, series, "GB/s"))
    cycles = [row for row in rows if row.get("contributions")]
    if cycles:
        labels = [f"{row['dtype']}, {row['contributions']} contributions" for row in cycles]
        series = {
            "Sumpter": [row["contribution_gb_per_s"] for row in cycles],
            "torch": [row.get("torch_contribution_gb_per_s") for row in cycles],
        }
        figures.append(_bars("A chunk's whole sum", labels, series, "GB/s of contributions"))
    checksums = [row for row in rows if row["table"] == "checksum"]
    if checksums:
        labels = [f"in {row['place']}" for row in checksums]
        series = {
            "checksum": [row.get("payload_gb_per_s") for row in checksums],
            "copy": [row.get("copied_gb_per_s") for row in checksums],
        }
        figures.append(_bars("A checksum of every byte", labels, series, "GB/s of payload"))
    codecs = [row for row in rows if row["table"] == "codec"]
    if codecs:
        fields = {
            "encode": "encode_gb_per_s",
            "decode": "decode_gb_per_s",
            "decode and add": "decode_add_gb_per_s",
            "copy": "copied_gb_per_s",
        }
        series = {label: [row.get(field) for row in codecs] for label, field in fields.items()}
        labels = [str(row["codec"]) for row in codecs]
        figures.append(_bars("Codecs, in cache", labels, series, "GB/s of float32"))
    wrong = sum(1 for row in rows if row.get("correct") is False)
    warnings = [f"{wrong} rows have a result that is not right."] if wrong else []
    return Section("Addition", name, figures=figures, warnings=warnings, facts=_facts(rows))


def server(name: str, rows: Sequence[Row]) -> Section:
    """Goodput of one server by workers and lanes."""
    labels = [f"{row['workers']} workers, {row['lanes']} lanes" for row in rows]
    fields = {
        "summing": "goodput_gb_per_s",
        "without summing": "without_summation_goodput_gb_per_s",
        "raw TCP": "raw_tcp_goodput_gb_per_s",
        "raw TCP that sums": "summing_tcp_goodput_gb_per_s",
    }
    series = {label: [row.get(field) for row in rows] for label, field in fields.items()}
    return Section(
        "One server",
        name,
        figures=[_bars("Goodput of one server", labels, series, "GB/s")],
        facts=_facts(rows),
    )


def ablate(name: str, rows: Sequence[Row]) -> Section:
    """Every speed of an ablation, by what was varied."""
    speeds = [
        field
        for field in rows[0]
        if field.endswith("gb_per_s") and all(schema.is_number(row.get(field)) for row in rows)
    ]
    fixed = {"ablation", "equal_results", "gain", *speeds}
    varied = [f for f in rows[0] if f not in fixed and not isinstance(rows[0][f], float)]
    labels = [", ".join(f"{_words(f)} {row.get(f)}" for f in varied) for row in rows]
    title = f"Ablation: {rows[0]['ablation']}"
    figures = []
    if speeds:
        series = {_words(field): [row[field] for row in rows] for field in speeds}
        figures.append(_bars(title, labels, series, "GB/s"))
    different = [row for row in rows if row.get("equal_results") is False]
    warnings = ["The ways compared do not give equal results."] if different else []
    return Section(title, name, figures=figures, warnings=warnings, facts=_facts(rows))


def _words(field: str) -> str:
    return field.removesuffix("_gb_per_s").replace("_", " ").replace("gb per s", "speed")


def replay(name: str, cells: Sequence[Row]) -> Section:
    """Share of the bound of each way to schedule, by cell."""
    systems = list(dict.fromkeys(system for cell in cells for system in cell["systems"]))
    labels = [
        f"{cell['profile']}, n={cell['workers']} k={cell['servers']}, "
        f"{cell['stands_for_gbps']:.3g} Gb/s"
        for cell in cells
    ]
    series = {
        _SYSTEM.get(system, system): [
            cell["systems"].get(system, {}).get("share_of_bound") for cell in cells
        ]
        for system in systems
    }
    speeds = {
        _SYSTEM.get(system, system): [
            cell["systems"].get(system, {}).get("iterations_per_s") for cell in cells
        ]
        for system in systems
    }
    note = "The bound is the longer of compute and communication at best; no schedule beats it."
    figures = [
        _bars(
            "Replay: share of the bound", labels, series, "of the bound", percent=True, note=note
        ),
        _bars("Replay: iterations in a second", labels, speeds, "iterations/s"),
    ]
    best = [_best_system(cell["systems"]) for cell in cells]
    findings = [
        f"{label}: {share:.0%} of the bound, with {system}."
        for label, (share, system) in zip(labels, best, strict=True)
    ]
    if len(cells) > _CELLS_LISTED:
        (share, system), where = min(zip(best, labels, strict=True), key=lambda one: one[0][0])
        (winner, times), *_ = Counter(system for _, system in best).most_common(1)
        findings = [
            f"{len(cells)} cells reach {share:.0%} of the bound or more, each with the best way to "
            f"schedule it; the lowest is {where}, with {system}.",
            f"The best one most often: {winner} ({times} of {len(cells)} cells).",
        ]
    return Section("Replayed training", name, findings=findings, figures=figures)


def _best_system(systems: dict[str, Row]) -> tuple[float, str]:
    """The highest share of the bound, and the name of the way to schedule that has it."""
    best = max(systems, key=lambda system: systems[system]["share_of_bound"])
    return systems[best]["share_of_bound"], _SYSTEM.get(best, best)


def tenants(name: str, found: Sequence[Row]) -> Section:
    """How fairly a server's link was shared."""
    figures, findings = [], []
    for index, one in enumerate(found, 1):
        labels = [f"{job['job']} (weight {job['weight']:g})" for job in one["jobs"]]
        series = {"all polite": [job["part"] for job in one["jobs"]]}
        beside = [job.get("part_beside_greedy") for job in one["jobs"]]
        if any(value is not None for value in beside):
            series["beside a greedy one"] = beside
        polite = sum(1 for job in one["jobs"] if job["part"] is not None)
        title = f"Jobs that share a server, run {index}" if len(found) > 1 else "Jobs that share"
        figures.append(_bars(title, labels, series, "part of the fair share"))
        findings.append(
            f"{polite} jobs on one server: Jain's index {one['jain']:.4f}, the lowest gets "
            f"{one['lowest_part']:.1%} of its fair share."
        )
    return Section("Sharing", name, findings=findings, figures=figures, facts=_facts(found))


def chaos(name: str, found: Sequence[Row]) -> Section:
    """How long training paused after each kind of fault."""
    figures, findings, warnings = [], [], []
    for one in found:
        faults = dict(sorted(one["faults"].items()))
        if faults:
            labels = [f"{kind} ({fault['count']} times)" for kind, fault in faults.items()]
            series = {
                "median": [fault["median_pause_s"] for fault in faults.values()],
                "longest": [fault["longest_pause_s"] for fault in faults.values()],
            }
            figures.append(_bars("Pause of training after a fault", labels, series, "s"))
        count = sum(fault["count"] for fault in faults.values())
        end = "Passed" if one["passed"] else "Failed"
        findings.append(f"{end} {count} faults in {one['seconds']:g} s and {one['rounds']} rounds.")
        warnings += one["problems"]
    return Section(
        "Faults", name, findings=findings, figures=figures, warnings=warnings, facts=_facts(found)
    )


SECTIONS: dict[str, Callable[[str, Sequence[Row]], Section]] = {
    "allreduce": allreduce,
    "sum": sums,
    "server": server,
    "ablate": ablate,
    "replay": replay,
    "tenants": tenants,
    "chaos": chaos,
}
