"""The order of a device group's collectives, whatever members do when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sumpter._core.device_order import (
    GATHER,
    REDUCE,
    Break,
    Fail,
    Failure,
    Launch,
    Operation,
    Order,
)

FAILED = Failure("MismatchError", "ranks differ")


def operation(name: str, number: int = 0) -> Operation:
    return Operation(name, "float32 sum (8,)", number)


def all_ready(
    order: Order, members: int, name: str, stage: str = REDUCE, priority: int = 0
) -> None:
    for member in range(members):
        order.ready(member, operation(name), stage, priority)


def test_a_stage_is_launched_when_all_are_ready_for_it() -> None:
    order = Order(2)
    order.ready(0, operation("a"), REDUCE, 0)
    order.ready(1, operation("b"), REDUCE, 0)
    assert order.decide() == []
    order.ready(1, operation("a"), REDUCE, 0)
    assert order.decide() == [Launch(operation("a"), REDUCE)]
    order.ready(0, operation("a"), GATHER, 0)
    assert order.decide() == []
    order.ready(1, operation("a"), GATHER, 0)
    assert order.decide() == [Launch(operation("a"), GATHER)]


def test_the_highest_priority_is_launched_next_and_first_come_first_served() -> None:
    order = Order(2, in_flight=1)
    for name, priority in (("a", 0), ("b", 1), ("c", 3), ("d", 3)):
        all_ready(order, 2, name, priority=priority)
    names = []
    while decided := order.decide():
        (launch,) = decided
        assert isinstance(launch, Launch)
        names.append(launch.operation.name)
        order.completed()
    # What is in flight is the best of what was ready.
    assert names == ["c", "d", "b", "a"]


def test_a_round_that_failed_is_not_launched_and_its_tensor_has_no_other() -> None:
    order = Order(3)
    order.ready(0, operation("a"), REDUCE, 0)
    order.failed(1, operation("a"), FAILED)
    assert order.decide() == [Fail(0, operation("a"), FAILED), Fail(1, operation("a"), FAILED)]
    # One that has not heard of it yet.
    order.ready(2, operation("a"), REDUCE, 0)
    order.ready(2, operation("a", 1), REDUCE, 0)
    assert order.decide() == [Fail(2, operation("a"), FAILED), Fail(2, operation("a", 1), FAILED)]
    all_ready(order, 3, "b")
    assert order.decide() == [Launch(operation("b"), REDUCE)]


def test_what_waits_for_its_turn_fails_as_well() -> None:
    order = Order(2, in_flight=0)
    all_ready(order, 2, "a")
    order.failed(0, operation("a"), FAILED)
    order.completed()
    assert [type(each) for each in order.decide()] == [Fail, Fail]


def test_members_that_differ_are_never_ready_together() -> None:
    order = Order(2)
    order.ready(0, Operation("a", "float32 sum (8,)", 0), REDUCE, 0)
    order.ready(1, Operation("a", "float32 sum (9,)", 0), REDUCE, 0)
    assert order.decide() == []
    order.failed(0, Operation("a", "float32 sum (8,)", 0), FAILED)
    assert {each.member for each in order.decide() if isinstance(each, Fail)} == {0, 1}


def test_different_calls_at_one_place_fail_on_all_members() -> None:
    order = Order(3)
    order.ready(0, operation("a"), REDUCE, 0, "world#7|all_reduce([8])")
    order.ready(1, operation("a"), REDUCE, 0, "world#7|all_reduce([8])")
    assert order.decide() == []
    order.ready(2, operation("b"), REDUCE, 0, "world#7|all_reduce([9])")
    decided = order.decide()
    assert [(each.member, each.operation.name) for each in decided if isinstance(each, Fail)] == [
        (0, "a"), (1, "a"), (2, "b"),
    ]  # fmt: skip
    assert {each.failure.kind for each in decided if isinstance(each, Fail)} == {"MismatchError"}
    (text,) = {each.failure.message for each in decided if isinstance(each, Fail)}
    assert "world#7: one rank called all_reduce([8]), another all_reduce([9])" in text
    # Calls without a place are matched by their names alone, and a place is one's own again.
    order.ready(0, operation("c"), REDUCE, 0, "")
    order.ready(1, operation("d"), REDUCE, 0, "allreduce([8])")
    order.ready(0, operation("e"), REDUCE, 0, "world#7|all_reduce([8])")
    assert order.decide() == []


def test_a_call_in_host_memory_that_fails_is_one_of_the_group() -> None:
    order = Order(3)
    order.ready(0, operation("a"), REDUCE, 0, "world#7|all_reduce on devices")
    order.ready(1, operation("a"), REDUCE, 0, "world#7|all_reduce on devices")
    order.failed(2, Operation("b", "in host memory", 0), FAILED, "world#7|all_reduce")
    told = {(each.member, each.operation.name) for each in order.decide() if isinstance(each, Fail)}
    assert told == {(0, "a"), (1, "a"), (2, "b")}
    order.failed(2, Operation("c", "in host memory", 0), FAILED)
    order.ready(0, operation("c"), REDUCE, 0)
    told = {(each.member, each.operation.name) for each in order.decide() if isinstance(each, Fail)}
    assert told == {(2, "c"), (0, "c")}


def test_a_broken_group_launches_nothing() -> None:
    order = Order(2)
    all_ready(order, 2, "a")
    gone = Failure("PeerLostError", "rank 1 died")
    order.broken(gone)
    order.broken(FAILED)
    all_ready(order, 2, "b")
    order.failed(0, operation("b"), FAILED)
    assert order.decide() == [Break(gone)]


def test_stages_out_of_turn_are_an_error() -> None:
    order = Order(2)
    with pytest.raises(ValueError, match="member 0 is ready to gather round 0 of 'a'"):
        order.ready(0, operation("a"), GATHER, 0)
    order.ready(0, operation("a"), REDUCE, 0)
    with pytest.raises(ValueError, match="the next stage is 'reduce'"):
        order.ready(0, operation("a"), REDUCE, 0)


class Rank:
    """A member as device_link.py and staging.py make one: what it does, at moments of a test's."""

    def __init__(self, number: int, program: list[str]) -> None:
        self.number = number
        self.program = deque(program)
        self.rounds: dict[str, int] = {}
        # What it waits for; the stage that comes next, and whether it has said that it is ready.
        self.open: dict[Operation, tuple[str, bool]] = {}
        self.launched: list[tuple[Operation, str]] = []
        self.concluded: list[Operation] = []
        self.begun: list[Operation] = []
        self.failing: set[Operation] = set()
        self.inbox: deque[Any] = deque()
        self.broken = False

    def begin(self) -> None:
        name = self.program.popleft()
        number = self.rounds.get(name, 0)
        self.rounds[name] = number + 1
        self.begun.append(operation(name, number))
        if self.broken:
            self.concluded.append(operation(name, number))
        else:
            self.open[operation(name, number)] = (REDUCE, False)

    def take(self) -> None:
        """What the leader has decided."""
        decided = self.inbox.popleft()
        if isinstance(decided, Launch):
            if decided.operation not in self.open:
                assert self.broken
                return
            stage, said = self.open[decided.operation]
            assert said and stage == decided.stage
            self.launched.append((decided.operation, stage))
            if stage == GATHER:
                self.conclude(decided.operation)
            else:
                self.open[decided.operation] = (GATHER, False)
        elif isinstance(decided, Fail):
            if decided.operation in self.open:
                self.conclude(decided.operation)
        else:
            self.broken = True
            for each in list(self.open):
                self.conclude(each)

    def conclude(self, of: Operation) -> None:
        del self.open[of]
        self.concluded.append(of)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_members_launch_one_sequence_and_every_round_ends(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4), "members")
    names = data.draw(st.lists(st.sampled_from("abcd"), max_size=8), "rounds")
    ranks = [Rank(number, data.draw(st.permutations(names))) for number in range(count)]
    order = Order(count, data.draw(st.integers(1, 3), "in flight"))
    may_fail = data.draw(st.booleans(), "failures")
    may_break = data.draw(st.booleans(), "a lost member")
    # Messages to the leader keep their order, of each member.
    outboxes: list[deque[Callable[[], None]]] = [deque() for _ in ranks]
    in_flight = 0

    def say_ready(rank: Rank, of: Operation) -> None:
        stage, _ = rank.open[of]
        rank.open[of] = (stage, True)
        priority = ord(of.name) % 3
        outboxes[rank.number].append(lambda: order.ready(rank.number, of, stage, priority))

    def say_failed(rank: Rank, of: Operation) -> None:
        rank.failing.add(of)
        outboxes[rank.number].append(lambda: order.failed(rank.number, of, FAILED))

    def lead(rank: Rank) -> None:
        nonlocal in_flight
        outboxes[rank.number].popleft()()
        decide()

    def decide() -> None:
        nonlocal in_flight
        for decided in order.decide():
            in_flight += isinstance(decided, Launch)
            for each in ranks:
                if not isinstance(decided, Fail) or decided.member == each.number:
                    each.inbox.append(decided)

    def complete() -> None:
        nonlocal in_flight
        in_flight -= 1
        order.completed()
        decide()

    def lose() -> None:
        order.broken(Failure("PeerLostError", "a rank died"))
        decide()

    def moves(failures: bool) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        found: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        for rank in ranks:
            found += [(rank.begin, ())] if rank.program else []
            found += [(rank.take, ())] if rank.inbox else []
            found += [(lead, (rank,))] if outboxes[rank.number] else []
            for of, (_, said) in rank.open.items():
                if of not in rank.failing:
                    found += [] if said else [(say_ready, (rank, of))]
                    found += [(say_failed, (rank, of))] if failures else []
        found += [(complete, ())] if in_flight else []
        found += [(lose, ())] if failures and may_break else []
        return found

    for _ in range(data.draw(st.integers(0, 60), "moves")):
        if not (possible := moves(may_fail)):
            break
        call, arguments = data.draw(st.sampled_from(possible))
        call(*arguments)
    # Whatever happened, everything comes to its end.
    while possible := moves(False):
        call, arguments = possible[0]
        call(*arguments)

    longest = max((rank.launched for rank in ranks), key=len)
    for rank in ranks:
        assert not rank.open
        assert sorted(rank.concluded) == sorted(rank.begun)
        assert rank.launched == longest[: len(rank.launched)]
        if not order.is_broken:
            assert len(rank.launched) == len(longest)
    if not may_fail:
        assert len(longest) == 2 * len(names)
