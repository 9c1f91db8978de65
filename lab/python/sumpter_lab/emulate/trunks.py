"""What a cell of `sumpter bench emulate` shows of racks: the bytes over each trunk, and the plans.

Measured bytes are those of the trunk's interface and include the headers and acknowledgements of
TCP; planned ones are of the tensors alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from sumpter_lab.scaffold.jobs.emulated import Round
from sumpter_lab.scaffold.network import counters
from sumpter_lab.scaffold.network.cluster import Racks
from sumpter_lab.scaffold.network.tournament import Links
from sumpter_lab.scaffold.optimum import Optimum
from sumpter_lab.scaffold.results.figures import fraction, idle_shares, ratio


def figures(
    racks: Racks | None, rounds: Mapping[str, Sequence[Round]], links: Links, times: Optimum
) -> dict[str, Any]:
    """The part of a cell's row that is about racks; nothing without them."""
    if racks is None:
        return {}
    seconds = {system: median(item.seconds for item in of) for system, of in rounds.items()}
    crossed = {system: bytes_by_rack(of) for system, of in rounds.items()}
    mean = _mean(crossed["sumpter"])
    return {
        "racks": racks.count,
        "trunk_mbit": racks.trunk_mbit,
        "trunk_goodput_mbit": links.trunks_mbit,
        "flat_seconds": seconds.get("flat"),
        "gain_over_flat": ratio(seconds.get("flat"), seconds["sumpter"]),
        "flat_optimum_seconds": times.flat_seconds,
        "flat_optimum_fraction": fraction(times.flat_seconds, seconds["sumpter"]),
        "trunk_bytes": crossed,
        "trunk_bytes_mean": {system: _mean(of) for system, of in crossed.items()},
        "trunk_bytes_flat": times.flat_trunk_bytes,
        "trunk_bytes_optimum": times.trunk_bytes,
        "trunk_bytes_of_flat": ratio(mean, fmean(times.flat_trunk_bytes.values())),
        "trunk_bytes_of_optimum": ratio(mean, fmean(times.trunk_bytes.values())),
        "trunk_idle": idle(rounds["sumpter"], links),
    }


def bytes_by_rack(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """What a round sends out of each rack and receives in it, the mean of some rounds."""
    return {
        rack: {
            "sent": fmean(item.trunks[rack].sent_bytes for item in rounds),
            "received": fmean(item.trunks[rack].received_bytes for item in rounds),
        }
        for rack in rounds[0].trunks
    }


def idle(rounds: Sequence[Round], links: Links) -> dict[str, float]:
    """By rack, how idle the busier direction of its trunk was."""
    seconds = sum(item.seconds for item in rounds)
    moved = {
        rack: sum((item.trunks[rack] for item in rounds), counters.NO_LINK)
        for rack in rounds[0].trunks
    }
    return {
        rack: min(idle_shares(counts, seconds, links.trunks_mbit[rack]).values())
        for rack, counts in moved.items()
    }


def _mean(crossed: Mapping[str, Mapping[str, float]]) -> float:
    """Over all racks and both directions."""
    return fmean(of for rack in crossed.values() for of in rack.values())
