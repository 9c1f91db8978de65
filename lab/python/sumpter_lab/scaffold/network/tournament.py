"""Measures what the links really carry: every machine with every other, both ways at once.

The figure that rounds are judged by is TCP goodput on the same kernel path, not the nominal rate
of a link, which also carries headers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sumpter._failure import Failure
from sumpter_lab.scaffold.jobs.remote import Remote, call_all, end_all, gather
from sumpter_lab.scaffold.network.cluster import Machine
from sumpter_lab.scaffold.network.probe import CONNECT_TIMEOUT_S, TAIL_S, Exchanged

# Slow start and the token bucket's burst are over long before.
WARMUP_S = 0.4
WINDOW_S = 1.0
# An undisturbed link gives 0.94 to 0.955 of its rate (0.956 is the ceiling for MTU 1500).
LEAST_SHARE = 0.85
# With few machines all pairs meet in one or two rounds: a disturbance could affect all.
LEAST_ROUNDS = 3
# Forking and importing nothing heavy; generous, since a cold start imports torch first.
START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Links:
    """The goodput of each machine's link, in Mb/s of payload each way."""

    goodput_mbit: dict[str, float]  # by machine, equal for machines of one rate
    measured_mbit: dict[str, float]  # by machine, the median of its own pairs
    raw_cpu_s_per_gb_moved: float  # of plain sockets: one GB sent and received by one machine

    @property
    def median_mbit(self) -> float:
        return statistics.median(self.goodput_mbit.values())

    def only(self, machines: Sequence[Machine]) -> Links:
        """The same for some of the machines."""
        names = [machine.name for machine in machines]
        return Links(
            {name: self.goodput_mbit[name] for name in names},
            {name: self.measured_mbit[name] for name in names},
            self.raw_cpu_s_per_gb_moved,
        )

    def check(self, machines: Sequence[Machine]) -> None:
        """Raises if links carry far less than they are set to: nothing could be judged by them."""
        for machine in machines:
            share = self.goodput_mbit[machine.name] / machine.rate_mbit
            if share < LEAST_SHARE:
                raise Failure(
                    f"the links of {machine.rate_mbit:g} Mb/s carry only "
                    f"{self.goodput_mbit[machine.name]:.1f} Mb/s of payload: this machine was too "
                    "busy to emulate them; run nothing beside, or take a lower --rate-mbit"
                )


def schedule(count: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs, until all pairs have met once.

    The circle method: one stays, the others move on by one seat each round. With an odd count one
    rests in each round.
    """
    seats: list[int | None] = list(range(count)) + ([None] if count % 2 else [])
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in pairs if None not in (a, b)])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _rounds(count: int) -> list[list[tuple[int, int]]]:
    """The schedule, repeated until a single bad exchange cannot decide."""
    once = schedule(count)
    return once * max(1, math.ceil(LEAST_ROUNDS / max(1, len(once))))


def duration_s(count: int) -> float:
    """About how long measuring `count` machines takes."""
    return len(_rounds(count)) * (WARMUP_S + WINDOW_S + TAIL_S) + 1.0


def measure(machines: Sequence[Machine], advance: Callable[[float], None]) -> Links:
    """Plays the tournament; `advance` is called with each finished share of it."""
    probes = [Remote(machine, "Probe", machine.address) for machine in machines]
    try:
        ports = call_all(probes, START_TIMEOUT_S, "port")
        efficiencies: dict[int, list[float]] = {index: [] for index in range(len(machines))}
        exchanges: list[Exchanged] = []
        plan = _rounds(len(machines))
        for pairs in plan:
            for (index, other), seen in _play(probes, ports, pairs):
                slower = min(machines[index].rate_mbit, machines[other].rate_mbit)
                efficiencies[index].append(seen.received_mbit / slower)
                exchanges.append(seen)
            advance(1 / len(plan))
    finally:
        end_all(probes, timeout_s=1.0)
    return summarize(machines, efficiencies, exchanges)


def summarize(
    machines: Sequence[Machine],
    efficiencies: dict[int, list[float]],
    exchanges: Sequence[Exchanged],
) -> Links:
    """Goodput by machine from the share of the slower link's rate that each pair got.

    Machines of one rate have equal links, so their figures are pooled, and the best exchange
    counts: a link cannot carry more than its rate, and whatever else made an exchange slower was
    a disturbance. Any lower figure would flatter the shares of the optimum.
    """
    pooled: dict[float, list[float]] = {}
    for index, machine in enumerate(machines):
        pooled.setdefault(machine.rate_mbit, []).extend(efficiencies[index])
    shares = {rate: max(values) for rate, values in pooled.items()}
    moved = sum(seen.moved_bytes for seen in exchanges)
    cpu_s = sum(seen.cpu_s for seen in exchanges)
    return Links(
        {machine.name: machine.rate_mbit * shares[machine.rate_mbit] for machine in machines},
        {
            machine.name: machine.rate_mbit * statistics.median(efficiencies[index])
            for index, machine in enumerate(machines)
        },
        cpu_s / moved * 1e9,
    )


def _play(
    probes: Sequence[Remote], ports: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> list[tuple[tuple[int, int], Exchanged]]:
    """One round: all pairs at once; what each player saw, with its opponent."""
    players = []
    for listener, caller in pairs:
        address = (probes[listener].machine.address, ports[listener])
        probes[listener].send("exchange", None, WARMUP_S, WINDOW_S)
        probes[caller].send("exchange", address, WARMUP_S, WINDOW_S)
        players += [(listener, caller), (caller, listener)]
    limit_s = CONNECT_TIMEOUT_S + 3 * (WARMUP_S + WINDOW_S + TAIL_S)
    seen = gather([probes[index] for index, _ in players], limit_s)
    return list(zip(players, seen, strict=True))
