"""The best possible time of a cell, from the planner and the measured links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sumpter import _native
from sumpter_lab.scaffold.network.cluster import Machine
from sumpter_lab.scaffold.network.tournament import Links


@dataclass(frozen=True)
class Optimum:
    """What the theory says about one cell."""

    seconds: float
    allreduce_seconds: float
    ps_seconds: float | None
    gain_over_allreduce: float | None  # g_a
    shares: dict[str, float]  # of all bytes, by the machine that sums them


def optimum(
    gpu: Sequence[Machine], cpu: Sequence[Machine], size_bytes: int, links: Links
) -> Optimum:
    """The planner's times for these machines with the goodput that their links really have."""
    listed = [
        f'[[machine]]\nrole = "{machine.role}"\nname = "{machine.name}"\n'
        f"bandwidth_gbps = {links.goodput_mbit[machine.name] / 1000:.9f}\n"
        for machine in (*gpu, *cpu)
    ]
    request = {"bytes": size_bytes, "machines": "".join(listed)}
    report = json.loads(_native.plan(json.dumps(request)))
    return Optimum(
        seconds=report["time_s"],
        allreduce_seconds=report["allreduce_time_s"],
        ps_seconds=report["ps_time_s"],
        gain_over_allreduce=report["gain_over_allreduce"],
        shares={row["name"]: row["share"] for row in report["machines"]},
    )
