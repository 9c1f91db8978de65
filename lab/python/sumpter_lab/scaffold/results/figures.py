"""Figures of measurements: ratios, quartiles, and what makes them doubtful."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sumpter_lab.scaffold.network.counters import CoreTicks, LinkCounts

# Of the cores' time. More than so much taken by other guests of the host, and links idled because
# nothing was there to send.
STOLEN = 0.02
# More than so much in use, and the cores may have set the time instead of the links.
BUSY_CORES = 0.9


def fraction(optimal_s: float, seconds: float) -> float | None:
    """t_opt over the measured time; None where nothing has to cross a link."""
    return optimal_s / seconds if optimal_s > 0 and seconds > 0 else None


def ratio(one: float | None, other: float | None) -> float | None:
    """One figure over another; None if either was not measured."""
    return None if one is None or not other else one / other


def quartiles(ordered: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles of some figures; all equal if there is one."""
    if len(ordered) == 1:
        return ordered[0], ordered[0], ordered[0]
    low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return low, middle, high


def stolen(cores: CoreTicks) -> float:
    """The share of the cores' time that other guests of the host took."""
    return ratio(cores.steal, cores.total) or 0.0


def idle_shares(moved: LinkCounts, seconds: float, goodput_mbit: float) -> dict[str, float]:
    """By direction, the share of a link's capacity that went unused; never below 0."""

    def idle(moved_bytes: int) -> float:
        return max(0.0, 1 - moved_bytes * 8e-6 / (goodput_mbit * seconds))

    return {"sent": idle(moved.sent_bytes), "received": idle(moved.received_bytes)}
