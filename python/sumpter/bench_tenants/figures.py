"""What the windows of a run say about fairness: shares, Jain's index, what a greedy job costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sumpter.bench import counters
from sumpter.bench.optimum import ratio

ALONE, TOGETHER, BESIDE_GREEDY = "alone", "together", "beside_greedy"


@dataclass(frozen=True)
class Window:
    """One measured stretch of time."""

    phase: str
    round: int
    seconds: float
    mbit: dict[str, float]  # by job: the mean of what its workers sent and received
    cores: counters.CoreTicks


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all values are equal, 1/n if one has everything."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 0.0


def document(weights: dict[str, int], greedy: str, windows: Sequence[Window]) -> dict[str, Any]:
    """The figures of a run; `greedy` is the greedy job's name, or empty."""
    mbit = {
        phase: {job: _median(windows, phase, job) for job in (*weights, greedy) if job}
        for phase in (ALONE, TOGETHER, BESIDE_GREEDY)
    }
    # The single-job figure is the server's, whichever job was alone: each has its turns.
    alone = statistics.median(next(iter(w.mbit.values())) for w in windows if w.phase == ALONE)
    rows = [_row(job, weights, alone, mbit) for job in weights]
    if greedy:
        rows.append({"job": greedy, "weight": 1, "beside_greedy_mbit": mbit[BESIDE_GREEDY][greedy]})
    together = [row["together_mbit"] for row in rows[: len(weights)]]
    found = {
        "alone_mbit": alone,
        "aggregate_mbit": sum(together),
        "aggregate_of_alone": ratio(sum(together), alone),
        "jain": jain([m / w for m, w in zip(together, weights.values(), strict=True)]),
        "lowest_of_fair": min(row["of_fair"] for row in rows[: len(weights)]),
        "jobs": rows,
        "cores_idle": {phase: _cores(windows, phase, "idle") for phase in mbit},
        "cores_steal": {phase: _cores(windows, phase, "steal") for phase in mbit},
        "windows": [asdict(window) for window in windows],
    }
    return {**found, **_greedy(rows[: len(weights)], mbit, greedy)} if greedy else found


def _row(
    job: str, weights: dict[str, int], alone: float, mbit: dict[str, dict[str, float | None]]
) -> dict[str, Any]:
    share = weights[job] / sum(weights.values())
    together = mbit[TOGETHER][job]
    assert together is not None, "all jobs run in this phase"
    return {
        "job": job,
        "weight": weights[job],
        "fair_mbit": alone * share,
        "together_mbit": together,
        "of_fair": ratio(together, alone * share),
        "beside_greedy_mbit": mbit[BESIDE_GREEDY][job],
    }


def _greedy(
    polite: Sequence[dict[str, Any]], mbit: dict[str, dict[str, float | None]], greedy: str
) -> dict[str, Any]:
    """What the polite ones lose beside the greedy one, against the polite job in its place."""
    kept = [
        beside / row["together_mbit"]
        for row in polite
        if (beside := row["beside_greedy_mbit"]) is not None
    ]
    beside = [row["beside_greedy_mbit"] for row in polite if row["beside_greedy_mbit"] is not None]
    taken = mbit[BESIDE_GREEDY][greedy] or 0.0
    return {
        "polite_kept": statistics.mean(kept),
        "polite_lowest_kept": min(kept),
        "greedy_over_polite": ratio(taken, statistics.mean(beside)),
    }


def _median(windows: Sequence[Window], phase: str, job: str) -> float | None:
    found = [w.mbit[job] for w in windows if w.phase == phase and job in w.mbit]
    return statistics.median(found) if found else None


def _cores(windows: Sequence[Window], phase: str, what: str) -> float | None:
    total = sum((w.cores for w in windows if w.phase == phase), counters.NO_TICKS)
    return ratio(getattr(total, what), total.total)
