"""AutoByte in virtual time: which sizes are best, how soon it finds them, and changing links."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from sumpter.tuning.driver import GROUP, UNMEASURED
from sumpter.tuning.points import KIB, MIB, Point, point
from sumpter.tuning.tuners import make
from sumpter_lab.regret import Cell, Surface, play
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
from sumpter_lab.scaffold.results.table import Row
from sumpter_lab.tune.figures import NEAR

_PAGE = "[Tuners](tuning.md)"
_MODELS = ("alexnet", "resnet50", "vgg16", "gpt2")
_LIMIT = 30  # iterations within which AutoByte has found its sizes
_OVERHEAD = 0.01
_GAINS = (0.06, 0.23)  # of AutoByte over a static choice where the network changes
_SIMULATED = (
    "Surfaces are simulated at full size; a message costs no processor time, so that small "
    "partitions look better than they are.",
)
# What differs by less is one optimum.
_SAME = 0.001


def fig3(asked: Asked) -> Found:
    """The best partition and credit by model and bandwidth, and what those of others lose."""
    models, rates = _MODELS, (1.0, 10.0, 100.0)
    surfaces = {
        (model, gbps): Surface(Cell(model, 8, 4, gbps, overlaps=True))
        for model in models
        for gbps in rates
    }
    best = {key: surface.best() for key, surface in surfaces.items()}
    rows = [
        {
            "model": model,
            "bandwidth_gbps": gbps,
            "partition_bytes": best[model, gbps].partition,
            "credit_bytes": best[model, gbps].credit,
            "seconds": surface.seconds(best[model, gbps]),
            "default_loss": _loss(surface, surface.cell.start),
            "largest_loss": max(_loss(surface, other) for other in best.values()),
        }
        for (model, gbps), surface in surfaces.items()
    ]
    by_model = max(
        _loss(surfaces[model, gbps], best[other, gbps])
        for model in models
        for other in models
        for gbps in rates
    )
    by_rate = max(
        _loss(surfaces[model, gbps], best[model, other])
        for model in models
        for gbps in rates
        for other in rates
    )
    default = [row["default_loss"] for row in rows]
    return Found(
        setup=f"n = 8, k = 4, {', '.join(models)} at 1, 10 and 100 Gb/s, iterations that overlap; "
        "39 pairs of partition and credit",
        claims=[
            judged(
                "the best sizes differ by model and bandwidth",
                f"differ ({NOT_AT_HAND})",
                f"{len(set(best.values()))} pairs are the best of {len(best)} cells",
                by_model > _SAME and by_rate > _SAME,
            ),
            judged(
                "so that sizes that were tuned for others are slow",
                f"slow ({NOT_AT_HAND})",
                f"those of another model lose up to {by_model:.1%}, those of another bandwidth up "
                f"to {by_rate:.1%}",
                max(by_model, by_rate) > NEAR,
            ),
        ],
        declared=(
            *_SIMULATED,
            f"The default sizes lose {median(default):.1%} in the median, {max(default):.1%} at "
            f"most here ({_PAGE}).",
        ),
        plots=(
            Plot(
                "Fig. 3: the best partition size",
                "bandwidth (Gb/s)",
                "KiB",
                [
                    Line(model, rates, [best[model, gbps].partition / KIB for gbps in rates])
                    for model in models
                ],
                log_x=True,
            ),
        ),
        rows=rows,
    )


def _loss(surface: Surface, at: Point) -> float:
    return surface.seconds(at) / surface.seconds(surface.best()) - 1


def fig5(asked: Asked) -> Found:
    """The iterations until AutoByte is near the best, from sizes that are not good."""
    models = ("alexnet", "resnet50", "gpt2") if asked.quick else _MODELS
    starts = (point(16 * KIB, 128 * KIB), point(128 * KIB, 4 * MIB), point(4 * MIB, 4 * MIB))
    rows = []
    for model in models:
        for servers in (0, 4):
            surface = Surface(Cell(model, 4, servers, 10.0, overlaps=True))
            for start in starts:
                rows.append(_search(surface, start))
    far = [row for row in rows if row["loss_at_start"] > NEAR]
    near = [row for row in far if row["near_from"] is not None and row["near_from"] <= _LIMIT]
    worst = max(row["loss_at_end"] for row in rows)
    stayed = sum(len(set(row["losses"])) == 1 for row in far)
    longest = 10 * (GROUP + UNMEASURED)
    curve = max(rows, key=lambda row: row["loss_at_start"])
    return Found(
        setup=f"n = 4, k = 0 and 4, {', '.join(models)} at 10 Gb/s with overlap, from the smallest "
        f"sizes, from 128 KiB and 4 MiB, and from 4 MiB for both; groups of {GROUP} iterations "
        f"after {UNMEASURED} that are not measured",
        claims=[
            judged(
                f"AutoByte finds sizes that are near the best within {_LIMIT} iterations",
                f"at most {_LIMIT}",
                f"within 2 % in {len(near)} of the {len(far)} cells that began further away; "
                f"after {longest} the worst is {worst:.1%} behind",
                len(near) == len(far),
            )
        ],
        why=f"It moves only where it predicts to gain more than 5 %, and stayed in {stayed} of the "
        f"{len(far)} cells ([Tuners](tuning.md)). {len(rows) - len(far)} of {len(rows)} cells "
        "began within 2 % of the best, so that there was little to find.",
        declared=(*_SIMULATED, "The weights are Sumpter's own, not those of the paper."),
        plots=(
            Plot(
                f"Fig. 5: {curve['model']}, k = {curve['servers']}, from {curve['start']}",
                "iterations",
                "time over the best",
                [
                    Line(
                        "autobyte",
                        [number * (GROUP + UNMEASURED) for number in range(len(curve["losses"]))],
                        [1 + loss for loss in curve["losses"]],
                    )
                ],
                from_zero=False,
            ),
        ),
        rows=rows,
    )


def _search(surface: Surface, start: Point) -> Row:
    cell = replace(surface.cell, first=start)
    moved = Surface(cell)
    group = GROUP + UNMEASURED
    losses = []
    for groups in range(11):
        if groups == 0:
            losses.append(_loss(moved, start))
            continue
        losses.append(play("autobyte", moved, groups * group, profiled=True).settled_regret)
    near = next((at * group for at in range(len(losses)) if max(losses[at:]) <= NEAR), None)
    return {
        "model": cell.model,
        "servers": cell.servers,
        "start": str(start),
        "loss_at_start": losses[0],
        "loss_at_end": losses[-1],
        "near_from": near,
        "losses": losses,
    }


def fig6(asked: Asked) -> Found:
    """Links that change between 3 and 10 Gb/s: AutoByte beside static sizes, and the bound."""
    models = ("resnet50",) if asked.quick else ("resnet50", "alexnet")
    periods = (24, 72) if asked.quick else (24, 48, 72, 96, 144)
    rows = []
    for model in models:
        for servers in (0, 2, 4):
            for overlaps in (False, True):
                cell = Cell(model, 4, servers, 3.0, overlaps, switched_gbps=10.0)
                surface = Surface(cell)
                for every in periods:
                    static, tuned = (
                        play(name, surface, 300, every=every) for name in ("fixed", "autobyte")
                    )
                    rows.append(
                        {
                            "model": model,
                            "servers": servers,
                            "overlaps": overlaps,
                            "every": every,
                            "gain": (1 + static.regret) / (1 + tuned.regret) - 1,
                            "bound": static.regret,
                        }
                    )
    gains, bounds = [row["gain"] for row in rows], [row["bound"] for row in rows]
    by_period = [[row for row in rows if row["every"] == every] for every in periods]
    low, high = _GAINS
    return Found(
        setup=f"n = 4, k = 0, 2 and 4, {', '.join(models)}, with and without overlap, links that "
        f"change between 3 and 10 Gb/s every {', '.join(map(str, periods))} iterations of 300",
        claims=[
            judged(
                "AutoByte gains over static sizes where bandwidth changes",
                f"{low:.0%} to {high:.0%}",
                f"{min(gains):+.1%} to {max(gains):+.1%}; the best sizes at every moment would "
                f"gain {max(bounds):.1%} at most",
                max(gains) >= low,
            )
        ],
        why="The default sizes are near the best at both rates, so that there is nothing to gain. "
        "The credit follows the link, and a plan cuts partitions to fit it ([Tuners](tuning.md)).",
        declared=(*_SIMULATED, "Static sizes are those of a job that starts at 3 Gb/s."),
        plots=(
            Plot(
                "Fig. 6: links that change between 3 and 10 Gb/s",
                "iterations between two changes",
                "gain over static sizes",
                [
                    Line(
                        "the best at every moment",
                        periods,
                        [median(row["bound"] for row in of) for of in by_period],
                        reference=True,
                    ),
                    Line(
                        "autobyte",
                        periods,
                        [median(row["gain"] for row in of) for of in by_period],
                    ),
                ],
                from_zero=False,
            ),
        ),
        rows=rows,
    )


def overhead(asked: Asked) -> Found:
    """The processor time of a choice over the time of the group of iterations that it follows."""
    rows = []
    for model in _MODELS:
        surface = Surface(Cell(model, 4, 2, 10.0, overlaps=True))
        at = surface.cell.start
        iteration_s = surface.seconds(at)
        job = surface.job(10.0, 1 / iteration_s, profiled=True)
        took_s = []
        for _ in range(5 if asked.quick else 50):
            # A new one each time: its first choice predicts every pair of sizes.
            tuner = make("autobyte")
            began_s = time.process_time()
            tuner.observe(at, 1 / iteration_s, job)
            took_s.append(time.process_time() - began_s)
        share = median(took_s) / ((GROUP + UNMEASURED) * iteration_s)
        rows.append({"model": model, "iteration_s": iteration_s, "choice_s": median(took_s)})
        rows[-1]["share"] = share
    shares = [row["share"] for row in rows]
    return Found(
        setup=f"{', '.join(_MODELS)}, n = 4, k = 2, 10 Gb/s; the processor time of a choice over "
        f"{GROUP + UNMEASURED} iterations",
        claims=[
            judged(
                "choosing sizes takes less than 1 %",
                "under 1 %",
                f"{min(shares):.3%} to {max(shares):.3%}",
                max(shares) < _OVERHEAD,
            )
        ],
        declared=("Iterations are simulated, the time of a choice is measured.",),
        plots=(
            Plot(
                "Overhead of AutoByte",
                "",
                "share of the time",
                [Line("a choice", [row["model"] for row in rows], shares)],
                bars=True,
            ),
        ),
        rows=rows,
    )


CASES = (
    Case(
        "autobyte-fig3",
        SCHEDULING,
        "Fig. 3",
        "the best partition and credit differ by model and bandwidth",
        How.VIRTUAL_TIME,
        fig3,
    ),
    Case(
        "autobyte-fig5",
        SCHEDULING,
        "Fig. 5",
        "AutoByte needs at most 30 iterations",
        How.VIRTUAL_TIME,
        fig5,
    ),
    Case(
        "autobyte-fig6",
        SCHEDULING,
        "Fig. 6",
        "AutoByte follows links that change between 3 and 10 Gb/s",
        How.VIRTUAL_TIME,
        fig6,
    ),
    Case(
        "autobyte-overhead",
        SCHEDULING,
        "overhead",
        "AutoByte's choices take less than 1 % of the time",
        How.MEASURED,
        overhead,
    ),
)
