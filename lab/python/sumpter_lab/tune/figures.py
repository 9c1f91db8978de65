"""What came out: how soon a tuner was near the best, and what its search cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from sumpter.tuning.driver import GROUP

Run = dict[str, Any]  # what one tuner did, as run.py yields it
# How far from the best a tuner may be to count as near it.
NEAR = 0.02


def best_period_s(runs: Sequence[Run]) -> float | None:
    """The median iteration of the grid once it has settled; None if there is no grid, or if the
    cluster changed meanwhile."""
    for run in runs:
        if run["tuner"] == "grid" and is_still(run) and len(settled(run)) >= GROUP:
            return statistics.median(settled(run))
    return None


def is_still(run: Run) -> bool:
    """Whether nothing happened to the cluster."""
    return not run["rates_mbit"] and run["second_job"] is None


def settled(run: Run) -> list[float]:
    """The iterations after the last change of sizes; the one that it fell into is left out."""
    return run["periods_s"][max(0, run["sizes"][-1]["iteration"] + 1) :]


def near_from(run: Run, best_s: float) -> int | None:
    """The first iteration of the first group that was near the best, as was the rest; or None."""
    periods, limit_s = run["periods_s"], best_s / (1 - NEAR)
    for first in range(0, len(periods) - GROUP + 1, GROUP):
        group, rest = periods[first : first + GROUP], periods[first:]
        if max(statistics.median(group), statistics.median(rest)) <= limit_s:
            return first
    return None


def lost_iterations(run: Run, best_s: float) -> float:
    """Iterations that could have been played meanwhile, had all been as fast as the best."""
    return sum(run["periods_s"]) / best_s - len(run["periods_s"])


def row(run: Run, runs: Sequence[Run]) -> dict[str, Any]:
    """One tuner's line."""
    periods, best_s = run["periods_s"], best_period_s(runs)
    final = run["sizes"][-1]
    near = None if best_s is None else near_from(run, best_s)
    first = next(
        (other for other in runs if other["tuner"] == "fixed"),
        None,
    )
    return {
        "tuner": run["tuner"],
        "iterations": len(periods),
        "iterations_per_s": len(periods) / sum(periods),
        "over_fixed": None if first is None else sum(first["periods_s"]) / sum(periods),
        "settled_per_s": 1 / statistics.median(settled(run)) if settled(run) else None,
        "near_from": near,
        "lost_iterations": None if best_s is None else lost_iterations(run, best_s),
        "changes": len(run["sizes"]) - 1,
        "partition_bytes": final["partition_bytes"],
        "credit_bytes": final["credit_bytes"],
        "cores_idle": run["cores_idle"],
        "cores_steal": run["cores_steal"],
    }
