"""ByteScheduler in virtual time: priority and credit, with and without the barrier."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sumpter_lab import profiles
from sumpter_lab.reproduce.case import (
    NOT_AT_HAND,
    SCHEDULING,
    Asked,
    Case,
    Found,
    How,
    Line,
    Plot,
    judged,
)
from sumpter_lab.reproduce.plan import plan
from sumpter_lab.scaffold.results.table import Row
from sumpter_lab.whatif import Case as Cluster
from sumpter_lab.whatif import simulate

_N = 4
_UNLIMITED = 1 << 40
# As in `sumpter bench replay`: what a partition waits for, and when the next forward pass begins.
SYSTEMS = {
    "off": {"order": "readiness", "credit_bytes": _UNLIMITED},
    "paced": {"order": "readiness"},
    "priority": {"order": "forward", "credit_bytes": _UNLIMITED},
    "credit": {"order": "forward"},
    "overlap": {"order": "forward", "overlap_forward": True},
}
# Less is not a gain in a simulation of partitions.
_GAIN = 0.02
_PAGE = "[Scheduling](scheduling.md)"


def order(asked: Asked) -> Found:
    """Speed of each schedule over none, by model, CPU machines and ratio of communication."""
    models = (
        ("resnet50", "vgg16")
        if asked.quick
        else (*("resnet50", "vgg16", "alexnet", "bert-large", "gpt2"),)
    )
    ratios = (0.5, 1.0, 2.0)
    rows = [
        row
        for model in models
        for servers in (0, 2, 4)
        for ratio in ratios
        for row in (_cell(model, servers, ratio),)
    ]
    crossed = [row["overlap"] for row in rows]
    behind = [row["credit"] / row["paced"] for row in rows]
    hidden = [row["overlap"] for row in rows if row["ratio"] >= 1]
    drawn = [row for row in rows if row["model"] == models[0]]
    names = [f"k = {row['servers']}, {row['ratio']:g}" for row in drawn]
    return Found(
        setup=f"n = {_N}, k = 0, 2 and 4, {', '.join(models)}; bandwidth such that without CPU "
        f"machines all sums take {', '.join(f'{ratio:g}' for ratio in ratios)} times as long as "
        "compute; speed over no schedule, whose forward pass waits for all sums",
        claims=[
            judged(
                "priority and credit gain across the barrier of iterations",
                f"gain ({NOT_AT_HAND})",
                f"{min(crossed):.2f} to {max(crossed):.2f} times as fast; "
                f"{statistics.median(hidden):.2f} in the median where communication takes as long "
                "as compute or longer",
                min(crossed) >= 1 - _GAIN and statistics.median(hidden) > 1 + _GAIN,
            ),
            judged(
                "the order of layers gains with the barrier as well",
                f"gains ({NOT_AT_HAND})",
                f"{min(behind):.2f} to {max(behind):.2f} of the speed in the order of readiness",
                min(behind) > 1 - _GAIN and max(behind) > 1 + _GAIN,
            ),
        ],
        why="While the forward pass waits for all sums, the order in which they come changes "
        "nothing but how links are filled. So the gain is that of the next forward pass, which "
        f"begins before the last sums are there; replays of real processes agree ({_PAGE}).",
        declared=("Times of layers follow their arithmetic.",),
        plots=(
            Plot(
                f"{models[0]}, n = {_N}: speed over no schedule",
                "CPU machines, communication over compute",
                "times as fast",
                [
                    Line(system, names, [row[system] for row in drawn])
                    for system in list(SYSTEMS)[1:]
                ],
                bars=True,
            ),
        ),
        rows=rows,
    )


def _cell(model: str, servers: int, ratio: float) -> Row:
    profile = profiles.published(model)
    # At 1 Gb/s, without CPU machines.
    sums_s = plan(workers=_N, bytes=profile.bytes, bandwidth_gbps=1.0)["time_s"]
    gbps = sums_s / (ratio * profile.iteration_s)
    cases = [
        Cluster(_N, servers, architecture="sumpter", bandwidth_gbps=gbps, **fields)
        for fields in SYSTEMS.values()
    ]
    seconds = [one.iteration_time_s for one in simulate(profile, cases, bottleneck=False)]
    over = {system: seconds[0] / own for system, own in zip(SYSTEMS, seconds, strict=True)}
    cell = {"model": model, "workers": _N, "servers": servers, "ratio": ratio}
    return {**cell, "bandwidth_gbps": gbps, "off_s": seconds[0], **over}


def replayed(tables: Sequence[Sequence[Row]]) -> Found:
    """The same of real processes on an emulated cluster, by `sumpter bench replay`."""
    cells = [row for table in tables for row in table]
    rows = [
        {
            "model": cell["profile"],
            "servers": cell["servers"],
            "ratio": cell["ratio"],
            "scale": cell["scale"],
            **{
                system: cell["systems"][system]["iterations_per_s"]
                / cell["systems"]["off"]["iterations_per_s"]
                for system in SYSTEMS
                if system in cell["systems"]
            },
        }
        for cell in cells
        if not cell["grid"] and {"off", "paced", "credit", "overlap"} <= cell["systems"].keys()
    ]
    crossed = [row["overlap"] for row in rows]
    behind = [row["credit"] / row["paced"] for row in rows]
    drawn = [row for row in rows if row["model"] == rows[0]["model"]]
    names = [f"k = {row['servers']}, {row['ratio']:g}" for row in drawn]
    median, faster = statistics.median(crossed), sum(gain > 1 + _GAIN for gain in crossed)
    return Found(
        setup=f"{len(rows)} cells of n = {_N} emulated machines, real workers and servers, compute "
        f"as timed waits ({_PAGE})",
        claims=[
            judged(
                "priority and credit gain across the barrier of iterations",
                f"gain ({NOT_AT_HAND})",
                f"{min(crossed):.2f} to {max(crossed):.2f} times as fast, {median:.2f} in the "
                f"median, over 1.02 in {faster} of {len(rows)} cells",
                median > 1 + _GAIN,
            ),
            judged(
                "the order of layers gains with the barrier as well",
                f"gains ({NOT_AT_HAND})",
                f"{min(behind):.2f} to {max(behind):.2f} of the speed in the order of readiness",
                statistics.median(behind) > 1 + _GAIN,
            ),
        ],
        why="As in virtual time (bytescheduler-order): behind the barrier an order gains nothing. "
        f"Ranks that overtake at different moments wait for each other, so that it loses "
        f"({_PAGE}).",
        declared=("Sizes and times are divided so that 100 Mb/s stand for faster links.",),
        plots=(
            Plot(
                f"{rows[0]['model']}, n = {_N}: speed over no schedule, emulated",
                "CPU machines, communication over compute",
                "times as fast",
                [
                    Line(system, names, [row.get(system) for row in drawn])
                    for system in list(SYSTEMS)[1:]
                ],
                bars=True,
            ),
        ),
        rows=rows,
    )


CASES = (
    Case(
        "bytescheduler-order",
        SCHEDULING,
        "priority and credit",
        "the order of layers and a credit make training faster",
        How.VIRTUAL_TIME,
        order,
    ),
)
