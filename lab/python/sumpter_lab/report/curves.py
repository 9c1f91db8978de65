"""The scaling factor of a profile by bandwidth, workers, helpers and compression, and advice.

The same questions as figures 6 to 8 of Zhang et al., "Is Network the Bottleneck of Distributed
Training?" (NetAI 2020), and by helpers, which that paper does not have. All numbers are those of
`sumpter whatif`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from sumpter.launch.figures import format_bytes, format_seconds
from sumpter.profiles import Profile
from sumpter_lab.report import theme
from sumpter_lab.report.blocks import Figure, Section, Table
from sumpter_lab.whatif import Case, Outcome, advise, simulate
from sumpter_lab.whatif.advice import in_words

# As in the paper, and what machines have today.
BANDWIDTHS_GBPS = (1, 2, 5, 10, 25, 40, 100)
LINES_GBPS = (1, 10, 25, 100)
WORKERS = (2, 4, 8, 16, 32, 64, 128)
COMPRESSIONS = (1, 2, 4, 8, 16, 32, 64)
_HELPER_PARTS = (0, 0.125, 0.25, 0.5, 0.75, 1)
_WORKER_PARTS = (4, 2, 1)

Line = tuple[str, Sequence[Case]]
# Called with the number of simulated cases and of all.
Advance = Callable[[int, int], None]


def _quiet(done: int, total: int) -> None:
    pass


def section(name: str, profile: Profile, case: Case, advance: Advance = _quiet) -> Section:
    """What-if curves around a case, and what would help it most."""
    outcome, advice = advise(profile, case, bottlenecks=False)
    sentences = in_words(outcome, advice)
    rows = [
        (one.change, f"{one.gain:+.0%}", one.outcome.scaling_factor, one.outcome.iteration_time_s)
        for one in advice
    ]
    heads = ("change", "samples per second", "scaling factor", "iteration (s)")
    tables = [Table("What would help, the best first", heads, rows)] if rows else []
    return Section(
        title=f"What if: {profile.name}",
        source=name,
        findings=(_about(case, outcome.scaling_factor), *sentences[:2]),
        notes=(
            "The scaling factor is the time of an iteration without communication over its time "
            "with it: 1 is perfect scaling. The dotted line marks the case above. These are the "
            "numbers that 'sumpter whatif' prints: links are the only limit besides additions.",
        ),
        figures=figures(profile, case, advance),
        lead=tables,
        facts={
            "gradients": format_bytes(profile.bytes),
            "iteration without communication": format_seconds(profile.iteration_s),
            "additions": "measured" if profile.add else "not measured, taken to cost no time",
            "architecture": case.architecture,
        },
    )


def figures(profile: Profile, case: Case, advance: Advance = _quiet) -> tuple[Figure, ...]:
    """The four curves around a case."""
    drawn = (
        ("by bandwidth", "bandwidth of each machine (Gb/s)", "bandwidth_gbps", by_bandwidth),
        ("by workers", "GPU machines", "workers", by_workers),
        ("by helpers", "CPU machines that help", "servers", by_helpers),
        ("by compression", "compression (bytes sent, divided by)", "compression", by_compression),
    )
    lines = [make(case) for *_, make in drawn]
    asked = [one for drawing in lines for _, cases in drawing for one in cases]
    outcomes = _simulated(profile, asked, advance)
    return tuple(
        _figure(case, title, axis, field, drawing, outcomes)
        for (title, axis, field, _), drawing in zip(drawn, lines, strict=True)
    )


def _simulated(profile: Profile, cases: Sequence[Case], advance: Advance) -> dict[Case, Outcome]:
    """Each case once. Those of the same machines follow one another, which shares their plan;
    others are simulated side by side, in threads that Python does not hold up."""
    groups: dict[tuple[int, int, str], list[Case]] = {}
    for case in dict.fromkeys(cases):
        groups.setdefault((case.workers, case.servers, case.architecture), []).append(case)
    found: dict[Case, Outcome] = {}
    total = sum(map(len, groups.values()))
    with ThreadPoolExecutor(_threads()) as threads:
        waiting = {
            threads.submit(simulate, profile, group, bottleneck=False): group
            for group in sorted(groups.values(), key=_work, reverse=True)
        }
        for done in as_completed(waiting):
            found |= zip(waiting[done], done.result(), strict=True)
            advance(len(found), total)
    return found


def _work(group: Sequence[Case]) -> int:
    """About in proportion to what simulating it takes; the longest begin first."""
    fluid = group[0].architecture != "allreduce"
    return len(group) * (group[0].workers + group[0].servers) * fluid


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def by_bandwidth(case: Case) -> list[Line]:
    """One line for each of three numbers of workers, the case's the largest."""
    counts = sorted({case.workers // part for part in _WORKER_PARTS if case.workers >= 2 * part})
    bandwidths = sorted({*BANDWIDTHS_GBPS, case.bandwidth_gbps})
    return [
        (
            f"{count} GPU machines",
            [
                replace(_of_workers(case, count), bandwidth_gbps=float(bandwidth))
                for bandwidth in bandwidths
            ],
        )
        for count in counts or [case.workers]
    ]


def by_workers(case: Case) -> list[Line]:
    """One line for each bandwidth; helpers grow with the workers."""
    counts = sorted({*WORKERS, case.workers})
    return [
        (
            f"{bandwidth:g} Gb/s",
            [replace(_of_workers(case, count), bandwidth_gbps=bandwidth) for count in counts],
        )
        for bandwidth in _lines_gbps(case)
    ]


def by_helpers(case: Case) -> list[Line]:
    """One line for each architecture, at the case's bandwidth."""
    most = max(case.workers, case.servers)
    counts = sorted({round(part * most) for part in _HELPER_PARTS} | {case.servers})
    helped = replace(case, architecture="sumpter")
    alone = replace(case, servers=0, architecture="allreduce")
    return [
        ("Sumpter", [replace(helped, servers=count) for count in counts]),
        (
            "parameter servers",
            [replace(case, servers=n, architecture="ps") for n in counts if n > 0],
        ),
        ("all-reduce, without them", [alone for _ in counts]),
    ]


def by_compression(case: Case) -> list[Line]:
    """One line for each bandwidth."""
    factors = sorted({*map(float, COMPRESSIONS), case.compression})
    return [
        (
            f"{bandwidth:g} Gb/s",
            [replace(case, bandwidth_gbps=bandwidth, compression=factor) for factor in factors],
        )
        for bandwidth in _lines_gbps(case)
    ]


def _lines_gbps(case: Case) -> list[float]:
    return sorted({*map(float, LINES_GBPS), case.bandwidth_gbps})


def _of_workers(case: Case, count: int) -> Case:
    """The case with other numbers of machines in the same proportion."""
    servers = round(case.servers * count / case.workers)
    helped = case.servers > 0
    return replace(case, workers=count, servers=max(1, servers) if helped else 0)


def _about(case: Case, scaling_factor: float) -> str:
    helpers = f" and {case.servers} CPU machines" if case.servers else ""
    compression = f", compression {case.compression:g}" if case.compression != 1 else ""
    efficiency = case.transport_efficiency
    used = f", of which {efficiency:.0%} is used" if efficiency != 1 else ""
    return (
        f"{case.workers} GPU machines{helpers} at {case.bandwidth_gbps:g} Gb/s{used}"
        f"{compression}: scaling factor {scaling_factor:.2f}."
    )


def _figure(
    case: Case,
    title: str,
    axis: str,
    field: str,
    lines: list[Line],
    outcomes: dict[Case, Outcome],
) -> Figure:
    import plotly.graph_objects as go

    position = _positions(title, lines)
    plot, columns = go.Figure(), {}
    for index, (label, cases) in enumerate(lines):
        x = position(label, cases)
        y = [outcomes[one].scaling_factor for one in cases]
        columns[label] = dict(zip(x, y, strict=True))
        plot.add_scatter(x=x, y=y, name=label, hovertemplate="%{x}: %{y:.4f}", **theme.line(index))
    now = getattr(case, field)
    plot.add_vline(x=now, line={"dash": "dot", "color": theme.GREY, "width": 1.5})
    theme.finish(plot, x=axis, y="scaling factor")
    plot.update_yaxes(range=[0, 1.04])
    values = sorted({x for column in columns.values() for x in column})
    if field != "servers":
        plot.update_xaxes(type="log")
    plot.update_xaxes(tickvals=values, ticktext=[f"{x:g}" for x in values])
    rows = [(x, *(column.get(x) for column in columns.values())) for x in values]
    return Figure(
        title=f"Scaling factor {title}",
        alt=f"Scaling factor {title}. {_range(columns)}",
        plot=plot,
        table=Table(f"Scaling factor {title}", (axis, *columns), rows),
    )


def _positions(title: str, lines: list[Line]) -> Callable[[str, Sequence[Case]], list[Any]]:
    """Where the points of a line are; all-reduce has no helpers and lies beside those who do."""
    field = {
        "by bandwidth": "bandwidth_gbps",
        "by workers": "workers",
        "by helpers": "servers",
        "by compression": "compression",
    }[title]
    first = [getattr(case, field) for case in lines[0][1]]

    def positions(label: str, cases: Sequence[Case]) -> list[Any]:
        return first if label.startswith("all-reduce") else [getattr(c, field) for c in cases]

    return positions


def _range(columns: dict[str, dict[Any, float]]) -> str:
    parts = [
        f"{label}: from {min(line.values()):.2f} to {max(line.values()):.2f}"
        for label, line in columns.items()
        if line
    ]
    return "; ".join(parts) + "."
