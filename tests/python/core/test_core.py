"""What fronts are made of, without a front: declared tensors, names, pieces and handles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumpter._calls import values
from sumpter._core import membership
from sumpter._core.handles import ChainedHandle, GroupHandle, Handle, poll, synchronize
from sumpter._core.names import Operation
from sumpter._core.pieces import (
    SMALLEST_PIECE_BYTES,
    check_splits,
    exchange_counts,
    padded,
    padded_rows,
)
from sumpter._core.process_sets import global_process_set
from sumpter._core.session import Session
from sumpter._core.tensor import Description
from sumpter._errors import ConfigError, DuplicateNameError


@pytest.fixture
def session(alone: None) -> Iterator[Session]:
    yield membership.current()


class Round:
    """A round that is done when a test says so."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._callbacks: list[Callable[[], object]] = []

    def end(self) -> None:
        self._done.set()
        for callback in self._callbacks:
            callback()

    def poll(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        assert self._done.wait(120.0)

    def on_done(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)


def test_a_tensor_is_declared_once(session: Session) -> None:
    first = session.declare("x", "all_reduce", [2, 3], "float32", ranks=[0])
    assert session.declare("x", "all_reduce", (2, 3), "float32", ranks=(0,)) is first
    assert session.declare("x", "all_reduce", (6,), "float32", ranks=(0,)) is not first
    assert (first.bytes, first.item_bytes) == (24, 4)
    with pytest.raises(ConfigError, match="all_gather"):
        session.declare("x", "all_gather", (2,), "float32")


def test_rounds_are_submitted_on_a_declared_tensor(session: Session) -> None:
    tensor = session.declare("x", "all_reduce", (3,), "int32")
    for value in range(3):
        sent, received = np.full(3, value, np.int32), np.zeros(3, np.int32)
        round_ = tensor.submit(sent.ctypes.data, received.ctypes.data, keep=(sent, received))
        round_.wait()
        assert received.tolist() == [value] * 3
    assert tensor.rounds == 3
    nothing = session.declare("empty", "all_reduce", (0,), "int32")
    assert nothing.submit(0, 0, keep=None).poll()
    assert nothing.rounds == 0


def test_tensors_of_a_cycle_take_turns(session: Session) -> None:
    described = Description("all_reduce", (3,), "int32")
    cycle = session.cycle("unnamed", 3, described)
    assert [next(cycle.turns).name for _ in range(4)] == [f"unnamed.{i}" for i in (0, 1, 2, 0)]
    assert session.cycle("unnamed", 3, described) is cycle
    # Ranks that were out of data have not counted what the others began.
    session.out_of_data()
    assert next(cycle.turns).name == "unnamed.0"


def test_a_name_means_another_tensor_with_another_description(session: Session) -> None:
    first = Operation(session, "allreduce", "x", "float32", (3,), "average")
    other = Operation(session, "allreduce", "x", "float32", (4,), "average")
    round_ = Round()
    for number, (operation, name) in enumerate(
        ((first, "allreduce.x"), (other, "allreduce.x~1"), (first, "allreduce.x"))
    ):
        identity = operation.next()
        assert (identity.name, identity.call) == (name, number)
    identity.note(round_)
    with pytest.raises(DuplicateNameError, match="still in flight"):
        other.next()
    round_.end()
    assert other.next().tag == "allreduce.x#3|allreduce(float32 [4], average)"
    # A rank that sums must not meet one that averages.
    total = Operation(session, "allreduce", "x", "float32", (3,), "sum").next()
    assert total.name == "allreduce.x:sum~2"
    assert total.tag == "allreduce.x#4|allreduce(float32 [3], sum)"


def test_operations_without_a_name_are_counted_together(session: Session) -> None:
    sums = Operation(session, "allreduce", None, "float32", (2, 3), "sum")
    flags = Operation(session, "allreduce", None, "uint8", (), "max")
    names = [operation.next().name for operation in (sums, flags, sums)]
    assert names == [
        "allreduce.noname.float32.2x3.sum.0",
        "allreduce.noname.uint8.scalar.max.1",
        "allreduce.noname.float32.2x3.sum.2",
    ]


def test_ranks_tell_each_other_how_many_rows_they_send(session: Session) -> None:
    identity = Operation(session, "allgather", "rows", "uint8", (0,), "uint8").next()
    handle = exchange_counts(session, identity, [5], "float32 [2]", global_process_set)
    assert handle.synchronize() == [[5]]


@given(st.integers(0, 1 << 40))
def test_padding_adds_an_eighth_at_most(size: int) -> None:
    assert size <= padded(size) <= max(SMALLEST_PIECE_BYTES, size + size // 8 + 1)
    assert padded(padded(size)) == padded(size)


@given(st.integers(0, 1 << 40))
def test_padding_adds_a_sixteenth_of_the_rows_at_most(rows: int) -> None:
    assert rows <= padded_rows(rows) <= rows + rows // 16
    assert padded_rows(padded_rows(rows)) == padded_rows(rows)
    assert rows >= 32 or padded_rows(rows) == rows


def test_gathers_of_ever_new_numbers_of_rows_use_few_names(session: Session) -> None:
    before = len(session.declared())
    for rows in range(100, 400):
        value = np.arange(2.0 * rows).reshape(rows, 2)
        np.testing.assert_array_equal(values.gather_value(value, "ever"), value)
    # 16 sizes an octave, of two octaves, and the numbers of rows.
    assert len(session.declared()) - before < 40


def test_rows_are_shared_out_evenly_or_as_they_are_split() -> None:
    assert check_splits(6, None, 3) == [2, 2, 2]
    assert check_splits(6, [1, 0, 5], 3) == [1, 0, 5]
    for rows, splits in ((5, None), (6, [6]), (6, [7, -1, 0]), (6, [1, 1, 1])):
        with pytest.raises(ValueError, match="rows"):
            check_splits(rows, splits, 3)


def test_what_comes_after_an_operation_begins_when_it_is_done() -> None:
    rounds, entered = [Round(), Round()], []

    class Context:
        def __enter__(self) -> None:
            entered.append(len(entered))

        def __exit__(self, *_: object) -> None:
            return None

    first = Handle(rounds[0], lambda: 2)
    chain = ChainedHandle(
        [first], [lambda found: [Handle(rounds[1], lambda: 3 * found[0])]], sum, Context
    )
    both = GroupHandle([chain, Handle(rounds[1], lambda: 1)])
    assert not poll(chain) and not entered
    rounds[0].end()
    assert entered == [0] and not poll(both)
    rounds[1].end()
    assert poll(both) and synchronize(both) == [6, 1]
    assert synchronize(chain) == 6


def test_a_step_that_fails_is_raised_by_the_chain() -> None:
    round_ = Round()
    chain = ChainedHandle([Handle(round_, lambda: 0)], [lambda found: 1 / found[0]], sum)
    round_.end()
    assert poll(chain)
    with pytest.raises(ZeroDivisionError):
        chain.synchronize()


def test_what_is_no_handle_is_refused_or_ignored() -> None:
    with pytest.raises(ValueError, match="not a handle"):
        poll(3)  # type: ignore[arg-type]
    assert synchronize(3) is None
    assert synchronize(lambda: 4) == 4
