"""In which order the ranks of a device group launch collectives on their devices.

A collective of a group runs when all members have launched it, and a device runs what it is given
one after the other: members that launch in different orders wait for each other for ever. Rounds
begin in different orders on different ranks, and their results arrive in different orders, so one
member, the leader, decides. A round has two stages, `REDUCE` before the network and `GATHER` after
it. Of those for which all members are ready, the leader launches the one with the highest priority.
It has at most a few in flight, so that priorities matter for the rest.

`Order` is the leader's state, without threads, connections and clocks; device_link.py drives it.

Invariants:
- every member is told to launch the same stages in the same order;
- no stage is launched before all members are ready for it, nor a stage of a round that failed;
- a round ends on every member that began it: launched twice, failed, or broken with the group;
- a tensor of which a round failed has no round any more, as in the core.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

REDUCE = "reduce"
GATHER = "gather"
STAGES = (REDUCE, GATHER)

# Collectives in flight: one that runs, and one that follows without a gap.
IN_FLIGHT = 2


class Operation(NamedTuple):
    """A round of a tensor. Members that differ in one of these are not ready for the same."""

    name: str
    # Element type, reduction and shape.
    what: str
    # How many rounds of this name and meaning the member has begun before.
    round: int


class Failure(NamedTuple):
    """An error: the name of its class, and what it says."""

    kind: str
    message: str


class Launch(NamedTuple):
    """All members launch a stage."""

    operation: Operation
    stage: str


class Fail(NamedTuple):
    """A member learns that no further stage of a round will be launched."""

    member: int
    operation: Operation
    failure: Failure


class Break(NamedTuple):
    """All members learn that nothing will be launched any more."""

    failure: Failure


Decision = Launch | Fail | Break


class _Pending:
    """A round of which not all stages have been launched."""

    def __init__(self) -> None:
        # The index of the next stage, and who is ready for it.
        self.stage = 0
        self.ready: set[int] = set()
        # Who waits for a decision about the round.
        self.begun: set[int] = set()
        self.priority = 0
        # Its place in the order of calls, if the calls have one, and what the member called there.
        self.place = ""
        self.called = ""


class Order:
    """The leader's view of the rounds of its group, whose members have the numbers from 0 on."""

    def __init__(self, members: int, in_flight: int = IN_FLIGHT) -> None:
        self._members = members
        self._free = in_flight
        self._pending: dict[Operation, _Pending] = {}
        # Stages for which all are ready; the first is the next. Some are of rounds that have failed
        # meanwhile.
        self._launchable: list[tuple[int, int, Operation, _Pending]] = []
        self._sequence = itertools.count()
        # The rounds that are the calls at these places.
        self._calls: dict[str, Operation] = {}
        # Why tensors have no rounds any more, by name, and why none has.
        self._failed: dict[str, Failure] = {}
        self._broken: Failure | None = None
        self._decided: list[Decision] = []

    @property
    def is_broken(self) -> bool:
        """Whether nothing is launched any more."""
        return self._broken is not None

    def ready(
        self, member: int, operation: Operation, stage: str, priority: int, tag: str = ""
    ) -> None:
        """A member can launch a stage. ValueError if it is not the round's next one.

        `tag` is that of the round's submission, `place|call`: members that make different calls at
        one place wait for each other, and the rounds fail.
        """
        if self._broken is not None:
            return
        failure = self._failed.get(operation.name)
        if failure is not None:
            self._decided.append(Fail(member, operation, failure))
            return
        known = self._pending.setdefault(operation, _Pending())
        if STAGES[known.stage] != stage or member in known.ready:
            raise ValueError(
                f"member {member} is ready to {stage} round {operation.round} of "
                f"{operation.name!r}, of which the next stage is {STAGES[known.stage]!r}"
            )
        known.begun.add(member)
        known.ready.add(member)
        if tag and not known.place and self._differs(member, operation, known, tag):
            return
        known.priority = max(known.priority, priority) if len(known.ready) > 1 else priority
        if len(known.ready) == self._members:
            entry = (-known.priority, next(self._sequence), operation, known)
            heapq.heappush(self._launchable, entry)

    def failed(self, member: int, operation: Operation, failure: Failure, tag: str = "") -> None:
        """A round has failed on a member, which waits for a decision about it.

        With the `tag` of a round that was not the group's, those at its place fail as well.
        """
        if self._broken is not None:
            return
        other = self._calls.get(tag.partition("|")[0]) if tag else None
        if other is not None and other.name != operation.name:
            self.failed(min(self._pending[other].begun), other, failure)
        failure = self._failed.setdefault(operation.name, failure)
        told = {(member, operation)}
        for other in [each for each in self._pending if each.name == operation.name]:
            known = self._pending.pop(other)
            self._calls.pop(known.place, None)
            told |= {(one, other) for one in known.begun}
        self._decided += [Fail(one, each, failure) for one, each in sorted(told)]

    def _differs(self, member: int, operation: Operation, known: _Pending, tag: str) -> bool:
        """Whether another member has made another call at the place of this one; both fail then."""
        place, _, called = tag.partition("|")
        if not called:
            return False
        other = self._calls.setdefault(place, operation)
        if other == operation:
            known.place, known.called = place, called
            return False
        before = self._pending[other]
        failure = Failure(
            "MismatchError",
            f"collective {place}: one rank called {before.called}, another {called}; every rank "
            "must make the same calls in the same order",
        )
        self.failed(min(before.begun), other, failure)
        self.failed(member, operation, failure)
        return True

    def completed(self) -> None:
        """One of the collectives in flight has run."""
        self._free += 1

    def broken(self, failure: Failure) -> None:
        """A member is gone, or cannot launch: what it has not launched would never complete."""
        if self._broken is None:
            self._broken = failure
            self._pending.clear()
            self._launchable.clear()
            self._decided.append(Break(failure))

    def decide(self) -> list[Decision]:
        """What has been decided since the last call, in order."""
        self._decided += self._launches()
        decided, self._decided = self._decided, []
        return decided

    def _launches(self) -> Iterator[Launch]:
        while self._free and self._launchable:
            *_, operation, known = heapq.heappop(self._launchable)
            if self._pending.get(operation) is not known:
                continue
            self._free -= 1
            yield Launch(operation, STAGES[known.stage])
            known.stage += 1
            known.ready.clear()
            if known.stage == len(STAGES):
                del self._pending[operation]
                self._calls.pop(known.place, None)
