"""Measures what the links really carry: every machine with every other, both ways at once.

With racks, every machine with every other of its rack; then racks, all machines of one with those
of another at once, for their trunks. The figure that rounds are judged by is TCP goodput on the
same kernel path, not the nominal rate of a link, which also carries headers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

from sumpter._failure import Failure
from sumpter_lab.scaffold.jobs.remote import Remote, call_all, end_all, gather
from sumpter_lab.scaffold.network.cluster import Machine, Trunk
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

Pairs = list[tuple[int, int]]
# By player and opponent, what the player saw.
Seen = list[tuple[tuple[int, int], Exchanged]]


@dataclass(frozen=True)
class Links:
    """The goodput of each machine's link, in Mb/s of payload each way."""

    goodput_mbit: dict[str, float]  # by machine, equal for machines of one rate
    measured_mbit: dict[str, float]  # by machine, the median of its own pairs
    raw_cpu_s_per_gb_moved: float  # of plain sockets: one GB sent and received by one machine
    trunks_mbit: dict[str, float] = field(default_factory=dict)  # by rack

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
            self.trunks_mbit,
        )

    def check(self, machines: Sequence[Machine], trunks: Sequence[Trunk] = ()) -> None:
        """Raises if links carry far less than they are set to: nothing could be judged by them."""
        links = [("links", one.rate_mbit, self.goodput_mbit[one.name]) for one in machines]
        links += [("trunks", one.rate_mbit, self.trunks_mbit[one.rack]) for one in trunks]
        for what, rate_mbit, goodput_mbit in links:
            if goodput_mbit / rate_mbit < LEAST_SHARE:
                raise Failure(
                    f"the {what} of {rate_mbit:g} Mb/s carry only {goodput_mbit:.1f} Mb/s of "
                    "payload: this machine was too busy to emulate them; run nothing beside, or "
                    "take a lower --rate-mbit"
                )


def schedule(count: int) -> list[Pairs]:
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


def within_racks(machines: Sequence[Machine]) -> list[Pairs]:
    """Rounds of disjoint pairs, until all pairs of each rack have met; without racks, all pairs."""
    racks = [
        [[(rack[a], rack[b]) for a, b in pairs] for pairs in schedule(len(rack))]
        for rack in _by_rack(machines)
    ]
    return [list(chain(*together)) for together in zip_longest(*racks, fillvalue=[])]


def between_racks(machines: Sequence[Machine]) -> list[Pairs]:
    """Rounds of disjoint pairs of racks, until all have met once: all their machines in pairs."""
    racks = _by_rack(machines)
    if len(racks) == 1:
        return []
    return [
        [pair for a, b in pairs for pair in zip(racks[a], racks[b], strict=True)]
        for pairs in schedule(len(racks))
    ]


def _by_rack(machines: Sequence[Machine]) -> list[list[int]]:
    racks: dict[str | None, list[int]] = {}
    for index, machine in enumerate(machines):
        racks.setdefault(machine.rack, []).append(index)
    return list(racks.values())


def _repeated(rounds: list[Pairs]) -> list[Pairs]:
    """The rounds, until a single bad exchange cannot decide."""
    return rounds * max(1, math.ceil(LEAST_ROUNDS / max(1, len(rounds))))


def duration_s(machines: Sequence[Machine]) -> float:
    """About how long measuring the links of machines takes."""
    rounds = [*_repeated(within_racks(machines)), *_repeated(between_racks(machines))]
    return len(rounds) * (WARMUP_S + WINDOW_S + TAIL_S) + 1.0


def measure(
    machines: Sequence[Machine], advance: Callable[[float], None], trunks: Sequence[Trunk] = ()
) -> Links:
    """Plays the tournament; `advance` is called with each finished share of it."""
    probes = [Remote(machine, "Probe", machine.address) for machine in machines]
    within, between = _repeated(within_racks(machines)), _repeated(between_racks(machines))
    try:
        ports = call_all(probes, START_TIMEOUT_S, "port")
        rounds = []
        for pairs in (*within, *between):
            rounds.append(_play(probes, ports, pairs))
            advance(1 / (len(within) + len(between)))
    finally:
        end_all(probes, timeout_s=1.0)
    efficiencies: dict[int, list[float]] = {index: [] for index in range(len(machines))}
    exchanges = list(chain(*rounds[: len(within)]))
    for (index, other), seen in exchanges:
        slower = min(machines[index].rate_mbit, machines[other].rate_mbit)
        efficiencies[index].append(seen.received_mbit / slower)
    links = summarize(machines, efficiencies, [seen for _, seen in exchanges])
    most = max(links.goodput_mbit[one.name] / one.rate_mbit for one in machines)
    goodputs = trunk_goodputs(machines, trunks, rounds[len(within) :], most)
    return replace(links, trunks_mbit=goodputs)


def trunk_goodputs(
    machines: Sequence[Machine], trunks: Sequence[Trunk], rounds: Sequence[Seen], most: float
) -> dict[str, float]:
    """Goodput in Mb/s by rack, from rounds in which racks have met.

    The share of what trunk and machines together could receive that the machines of a rack got.
    Trunks are equal, so their shares are pooled, and the best counts, as in `summarize`. The
    windows of exchanges do not begin at the same moment, which may flatter their sum: no trunk
    carries more of its rate than the links of machines, whose share is `most`.
    """
    shares = []
    for seen in rounds:
        for trunk in trunks:
            received, limit = 0.0, 0.0
            for (index, other), exchanged in seen:
                if machines[index].rack == trunk.rack:
                    received += exchanged.received_mbit
                    limit += min(machines[index].rate_mbit, machines[other].rate_mbit)
            # With an odd number of racks one rests in each round.
            if limit:
                shares.append(received / min(limit, trunk.rate_mbit))
    return {trunk.rack: trunk.rate_mbit * min(most, max(shares)) for trunk in trunks}


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


def _play(probes: Sequence[Remote], ports: Sequence[int], pairs: Pairs) -> Seen:
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
