"""The best possible time of a cell, from the planner and the measured links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sumpter import _native
from sumpter_lab.scaffold.network.cluster import Machine
from sumpter_lab.scaffold.network.mesh import volumes
from sumpter_lab.scaffold.network.tournament import Links
from sumpter_lab.scaffold.results.figures import ratio


@dataclass(frozen=True)
class Optimum:
    """What the theory says about one cell. A ring's ranks are in the order of racks."""

    seconds: float
    allreduce_seconds: float
    ps_seconds: float | None
    gain_over_allreduce: float | None  # g_a
    shares: dict[str, float]  # of all bytes, by the machine that sums them in flat trees
    flat_seconds: float  # with flat trees of these shares; without racks, `seconds`
    # By rack, what its trunk carries each way.
    trunk_bytes: dict[str, float]
    flat_trunk_bytes: dict[str, float]


def optimum(
    gpu: Sequence[Machine], cpu: Sequence[Machine], size_bytes: int, links: Links
) -> Optimum:
    """The planner's times for these machines with the goodput that their links really have."""
    machines = (*gpu, *cpu)
    flat = _report(machines, size_bytes, links, {})
    shares = {row["name"]: row["share"] for row in flat["machines"]}
    trunks = links.trunks_mbit
    crossing = _crossing(machines, [shares[one.name] for one in machines], len(gpu), size_bytes)
    report = _report(machines, size_bytes, links, trunks) if trunks else flat
    # A ring crosses the trunk of each rack once each way.
    around = 2 * (len(gpu) - 1) / len(gpu) * size_bytes
    allreduce_s = _slowest(flat["allreduce_time_s"], dict.fromkeys(trunks, around), trunks)
    return Optimum(
        seconds=report["time_s"],
        allreduce_seconds=allreduce_s,
        ps_seconds=report["ps_time_s"],
        gain_over_allreduce=ratio(allreduce_s, report["time_s"]),
        shares=shares,
        flat_seconds=_slowest(flat["time_s"], crossing, trunks),
        trunk_bytes={
            rack["name"]: rack["trunk_bytes"] for rack in report.get("trees", {}).get("racks", ())
        },
        flat_trunk_bytes=crossing,
    )


def _report(
    machines: Sequence[Machine], size_bytes: int, links: Links, trunks_mbit: dict[str, float]
) -> dict[str, Any]:
    """What `sumpter plan` says of machines, in these racks if there are any."""
    racks = [
        f'[[rack]]\nname = "{name}"\ntrunk_gbps = {mbit / 1000:.9f}\n'
        for name, mbit in trunks_mbit.items()
    ]
    listed = [
        f'[[machine]]\nrole = "{machine.role}"\nname = "{machine.name}"\n'
        f"bandwidth_gbps = {links.goodput_mbit[machine.name] / 1000:.9f}\n"
        + (f'rack = "{machine.rack}"\n' if trunks_mbit else "")
        for machine in machines
    ]
    request = {"bytes": size_bytes, "machines": "".join(racks + listed)}
    return json.loads(_native.plan(json.dumps(request)))


def _crossing(
    machines: Sequence[Machine], shares: Sequence[float], workers: int, size_bytes: int
) -> dict[str, float]:
    """By rack, the bytes that machines exchange with those of other racks in flat trees."""
    crossing: dict[str, float] = {}
    for one, moved in zip(machines, volumes(shares, workers, size_bytes), strict=True):
        if one.rack is not None:
            out = sum(moved[to] for to in moved if machines[to].rack != one.rack)
            crossing[one.rack] = crossing.get(one.rack, 0.0) + out
    return crossing


def _slowest(seconds: float, crossing: dict[str, float], trunks_mbit: dict[str, float]) -> float:
    """The time of machines' links or of a trunk, whichever is longer."""
    trunks = (crossing[rack] * 8e-6 / mbit for rack, mbit in trunks_mbit.items())
    return max(seconds, *trunks, 0.0)
