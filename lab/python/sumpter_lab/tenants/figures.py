"""What the windows of a run say about fairness: shares, Jain's index, what a greedy job takes.

A job's *fair share* is the single-job figure divided by weight. Its *part* is what it got of what
all jobs moved in the same window, over what it would have got by weight: 1 is even. Parts do not
depend on how fast the machine was in that window.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sumpter_lab.scaffold.network import counters
from sumpter_lab.scaffold.results.figures import ratio, stolen

ALONE, TOGETHER, BESIDE_GREEDY = "alone", "together", "beside_greedy"
GREEDY = "greedy"


@dataclass(frozen=True)
class Window:
    """One measured stretch of time."""

    phase: str
    round: int
    seconds: float
    mbit: dict[str, float]  # by job: the mean of what its workers sent and received
    cores: counters.CoreTicks

    @property
    def stolen(self) -> float:
        """The share of the cores' time that other guests of the host took."""
        return stolen(self.cores)


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all values are equal, 1/n if one has everything."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 0.0


def parts(window: Window, weights: Mapping[str, int]) -> dict[str, float]:
    """Each job's part of a window, from the weights of all jobs."""
    total, weight = sum(window.mbit.values()), sum(weights[job] for job in window.mbit)
    if not total:
        return dict.fromkeys(window.mbit, 0.0)
    return {job: mbit / total * weight / weights[job] for job, mbit in window.mbit.items()}


def select(windows: Sequence[Window], rounds: int) -> list[Window]:
    """The rounds that were disturbed least. Rates do not take part in the choice."""
    worst: dict[int, float] = {}
    for window in windows:
        worst[window.round] = max(worst.get(window.round, 0.0), window.stolen)
    best = set(sorted(worst, key=lambda number: worst[number])[:rounds])
    return [window for window in windows if window.round in best]


def document(
    weights: Mapping[str, int], greedy: bool, windows: Sequence[Window], rounds: int
) -> dict[str, Any]:
    """The figures of a run of so many rounds, of which the least disturbed count."""
    everyone = {**weights, **({GREEDY: 1} if greedy else {})}
    kept = select(windows, rounds)
    by_phase = {
        phase: [window for window in kept if window.phase == phase]
        for phase in (ALONE, TOGETHER, BESIDE_GREEDY)
    }
    # The single-job figure is the server's, whichever job was alone: each has its turns.
    alone = statistics.median(sum(window.mbit.values()) for window in by_phase[ALONE])
    together = _totals(by_phase[TOGETHER])
    rows = [_row(job, everyone, alone, by_phase) for job in everyone]
    found = {
        "alone_mbit": alone,
        "aggregate_mbit": together,
        "aggregate_of_alone": ratio(together, alone),
        # Of each window, so that a machine which was faster in one of them does not count.
        "jain": statistics.median(
            jain(list(parts(window, everyone).values())) for window in by_phase[TOGETHER]
        ),
        "lowest_part": min(row["part"] for row in rows if row["part"] is not None),
        "lowest_of_fair": min(row["of_fair"] for row in rows if row["of_fair"] is not None),
        "jobs": rows,
        "cores_idle": {phase: _cores(of, "idle") for phase, of in by_phase.items() if of},
        "cores_steal": {phase: _cores(of, "steal") for phase, of in by_phase.items() if of},
        "rounds_kept": sorted({window.round for window in kept}),
        "windows": [asdict(window) for window in windows],
    }
    return {**found, **_greedy(rows, by_phase)} if greedy else found


def _row(
    job: str,
    weights: Mapping[str, int],
    alone: float,
    by_phase: Mapping[str, Sequence[Window]],
) -> dict[str, Any]:
    """A job's medians; None in a phase that it took no part in."""
    total = sum(weights[name] for name in by_phase[TOGETHER][0].mbit)
    together = _median([w.mbit[job] for w in by_phase[TOGETHER] if job in w.mbit])
    fair = alone * weights[job] / total
    medians = {
        phase: _median([parts(w, weights)[job] for w in by_phase[phase] if job in w.mbit])
        for phase in (TOGETHER, BESIDE_GREEDY)
    }
    return {
        "job": job,
        "weight": weights[job],
        "fair_mbit": fair,
        "together_mbit": together,
        "of_fair": ratio(together, fair),
        "part": medians[TOGETHER],
        "beside_greedy_mbit": _median(
            [w.mbit[job] for w in by_phase[BESIDE_GREEDY] if job in w.mbit]
        ),
        "part_beside_greedy": medians[BESIDE_GREEDY],
    }


def _greedy(
    rows: Sequence[dict[str, Any]], by_phase: Mapping[str, Sequence[Window]]
) -> dict[str, Any]:
    """What the greedy job takes and leaves."""
    polite = [
        row["part_beside_greedy"]
        for row in rows
        if row["job"] != GREEDY and row["part_beside_greedy"] is not None
    ]
    return {
        "greedy_part": next(row["part_beside_greedy"] for row in rows if row["job"] == GREEDY),
        "polite_part": statistics.mean(polite),
        "lowest_polite_part": min(polite),
        "aggregate_beside_greedy_of_together": ratio(
            _totals(by_phase[BESIDE_GREEDY]), _totals(by_phase[TOGETHER])
        ),
    }


def _totals(windows: Sequence[Window]) -> float:
    return statistics.median(sum(window.mbit.values()) for window in windows)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _cores(windows: Sequence[Window], what: str) -> float | None:
    total = sum((window.cores for window in windows), counters.NO_TICKS)
    return ratio(getattr(total, what), total.total)
