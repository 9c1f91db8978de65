"""Queues of callbacks: their order, and that a callback may block for whatever it likes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from logs import logged
from sumpter._core import callbacks
from sumpter._core.callbacks import CallbackQueue
from sumpter._core.deadlines import Deadlines

# Only so that a hang fails instead of blocking.
HANG_S = 120.0


def nothing() -> None:
    pass


def call(queue: CallbackQueue, callback: Callable[[], object]) -> threading.Event:
    """Adds a callback; the event is set when it has returned."""
    returned = threading.Event()

    def conclude() -> None:
        callback()
        returned.set()

    queue.add(nothing, conclude)
    return returned


def test_callbacks_run_in_the_order_in_which_they_were_added() -> None:
    queue, order, may_begin = CallbackQueue(), [], threading.Event()
    queue.add(lambda: may_begin.wait(HANG_S), lambda: order.append(0))
    later = [call(queue, lambda n=number: order.append(n)) for number in range(1, 50)]
    assert not any(event.is_set() for event in later)
    may_begin.set()
    assert later[-1].wait(HANG_S)
    assert order == list(range(50))
    # Behind the last callback comes what its thread notes of it.
    callbacks._threads.finish(HANG_S)
    assert queue.stands


def test_what_a_callback_adds_it_can_wait_for_at_any_depth() -> None:
    queue, depths = CallbackQueue(), []

    def nest(depth: int) -> None:
        assert callbacks.is_in_callback()
        if depth:
            assert call(queue, lambda: nest(depth - 1)).wait(HANG_S)
        depths.append(depth)

    assert call(queue, lambda: nest(20)).wait(HANG_S)
    assert depths == list(range(21))
    assert not callbacks.is_in_callback()


def test_a_callback_that_blocks_for_a_later_one_is_overtaken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callbacks, "OVERTAKE_AFTER_S", 0.01)
    queue, later_ran = CallbackQueue(), threading.Event()
    # It waits within a callback of its own, too.
    first = call(queue, lambda: call(queue, lambda: later_ran.wait(HANG_S)).wait(HANG_S))
    call(queue, later_ran.set)
    assert first.wait(HANG_S)
    assert call(queue, nothing).wait(HANG_S)


def test_what_has_not_happened_yet_is_not_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "OVERTAKE_AFTER_S", 0.0)
    looked = threading.Semaphore(0)
    look = CallbackQueue._look
    monkeypatch.setattr(CallbackQueue, "_look", lambda self: (look(self), looked.release()))
    queue, order, may_begin = CallbackQueue(), [], threading.Event()
    queue.add(lambda: may_begin.wait(HANG_S), lambda: order.append(0))
    last = call(queue, lambda: order.append(1))
    for _ in range(5):
        assert looked.acquire(timeout=HANG_S)
    assert order == []
    # Once it has happened it may take a moment on a busy machine.
    monkeypatch.setattr(callbacks, "OVERTAKE_AFTER_S", HANG_S)
    may_begin.set()
    assert last.wait(HANG_S)
    assert order == [0, 1]


def test_a_callback_that_fails_is_logged_and_the_next_one_runs() -> None:
    queue = CallbackQueue()
    with logged() as log:
        queue.add(nothing, lambda: 1 / 0)
        assert call(queue, nothing).wait(HANG_S)
        log.wait_for("ZeroDivisionError")


def test_as_many_callbacks_may_block_as_there_are() -> None:
    ran, all_ran = [threading.Event() for _ in range(50)], threading.Barrier(51)

    def block(number: int) -> None:
        ran[number].set()
        all_ran.wait(HANG_S)

    for number in range(50):
        callbacks.run(lambda number=number: block(number))
    assert all(event.wait(HANG_S) for event in ran)
    all_ran.wait(HANG_S)
    callbacks.finish()


def test_deadlines_that_were_met_are_forgotten() -> None:
    deadlines, late, passed = Deadlines(), [], threading.Event()
    deadlines.add("met", 1.0e9, lambda: late.append("met"))
    deadlines.discard("met")
    deadlines.add("missed", 0.0, lambda: late.append("missed"))
    deadlines.add("after", 0.0, passed.set)
    assert passed.wait(HANG_S)
    assert late == ["missed"]
