"""Which faults happen when: a pure function of a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

# Between the beginnings of two faults.
LEAST_GAP_S, MOST_GAP_S = 1.0, 2.0
# How many of the servers that were killed or drained are started again; the other places stay empty
# until a server joins, so that k walks through all it can be.
COMES_BACK = 0.5


class Kind(StrEnum):
    """What can go wrong. The values are what users read and write."""

    KILL = "kill"  # a server, by SIGKILL
    STALL = "stall"  # a server, by SIGSTOP, for less than the time after which it counts as dead
    FREEZE = "freeze"  # the same for longer
    DRAIN = "drain"  # a server, by SIGTERM
    JOIN = "join"  # one more server
    CUT = "cut"  # data connections of a worker or server are reset
    UNPLUG = "unplug"  # a machine's cable, for a moment
    HUSH = "hush"  # a machine's link carries nothing one way
    COORDINATOR = "coordinator"  # killed, and started again at the same address


LOCAL = (Kind.KILL, Kind.STALL, Kind.FREEZE, Kind.DRAIN, Kind.JOIN, Kind.CUT)
EMULATED = (*LOCAL, Kind.UNPLUG, Kind.HUSH)
# Faults that need a server, and what happens instead if there is none.
_OF_SERVERS = (Kind.KILL, Kind.STALL, Kind.FREEZE, Kind.DRAIN)

WHAT = {
    Kind.KILL: "server killed (SIGKILL)",
    Kind.STALL: "server stopped for less than its time-out",
    Kind.FREEZE: "server stopped for longer than its time-out",
    Kind.DRAIN: "server drained (SIGTERM)",
    Kind.JOIN: "server joined",
    Kind.CUT: "connections reset mid-stream",
    Kind.UNPLUG: "cable out and in again",
    Kind.HUSH: "link silent one way",
    Kind.COORDINATOR: "coordinator killed and started again",
}


@dataclass(frozen=True)
class Planned:
    """A fault as the seed has it; `choice`, from 0 to 1, picks its victim of those there then.

    `twist`, also from 0 to 1, is for what else there is to choose: whether another server comes
    after one that goes, which way a link is silent, how many connections are cut.
    """

    at_s: float
    kind: Kind
    duration_s: float
    choice: float
    twist: float


def schedule(
    seed: int, seconds: float, kinds: Sequence[Kind], server_timeout_s: float
) -> Iterator[Planned]:
    """Faults in the order of time, the first after a gap, none after `seconds`.

    Kinds are drawn without putting back until all were, so that each has its turn early.
    """
    draw = random.Random(seed)
    bag: list[Kind] = []
    at_s = 0.0
    while kinds:
        at_s += draw.uniform(LEAST_GAP_S, MOST_GAP_S)
        if at_s > seconds:
            return
        if not bag:
            bag = draw.sample(list(kinds), len(kinds))
        kind = bag.pop()
        low, high = _duration_range_s(kind, server_timeout_s)
        yield Planned(at_s, kind, draw.uniform(low, high), draw.random(), draw.random())


def resolve(kind: Kind, servers: int, free: int) -> Kind:
    """What a fault becomes where there is no victim or no place for it."""
    if kind in _OF_SERVERS and servers == 0:
        return Kind.JOIN if free else Kind.CUT
    if kind is Kind.JOIN and free == 0:
        return Kind.DRAIN if servers else Kind.CUT
    return kind


def pick(choice: float, count: int) -> int:
    """The index that a choice from 0 to 1 means among `count` things."""
    return min(int(choice * count), count - 1)


def _duration_range_s(kind: Kind, server_timeout_s: float) -> tuple[float, float]:
    """How long a fault lasts: until its victim goes on, or until another server comes."""
    match kind:
        case Kind.STALL:
            return 0.1 * server_timeout_s, 0.7 * server_timeout_s
        case Kind.FREEZE:
            return 1.3 * server_timeout_s, 3.0 * server_timeout_s
        case Kind.UNPLUG:
            return 0.1, 0.5
        case Kind.HUSH:
            # Short, since a worker that is silent for peer_timeout_s rightly counts as dead.
            return 0.3, 1.0
        case Kind.COORDINATOR:
            return 0.2, 1.0
        case Kind.CUT:
            return 0.0, 0.0
        case Kind.KILL | Kind.DRAIN | Kind.JOIN:
            return 0.5, 3.0
