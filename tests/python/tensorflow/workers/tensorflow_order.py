"""Calls that differ between ranks, eagerly and in graphs: who differs is told on all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable

import tensorflow as tf

import sumpter.tensorflow as st

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FIRST = RANK == 0


def expect_error(call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except (st.SumpterError, tf.errors.OpError) as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"expected an error with {parts}")


def check_that_the_job_works() -> None:
    assert st.allreduce(tf.ones(3), op=st.Sum).numpy().tolist() == [float(SIZE)] * 3


@tf.function
def in_graph(x: tf.Tensor) -> tf.Tensor:
    return st.allreduce(x, op=st.Max)


@tf.function
def two_in_graph(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if FIRST:
        return st.allreduce(x), st.broadcast(x, 1)
    return st.broadcast(x, 1), st.allreduce(x)


def check_order() -> None:
    """Without names calls are matched by their order, wherever they are made."""
    x = tf.ones(3)
    parts = ("MismatchError", "rank 0", "rank 1", "allreduce", "max", "broadcast")

    def mixed() -> None:
        if FIRST:
            st.broadcast(x, 1)
            in_graph(x)
        else:
            in_graph(x)
            st.broadcast(x, 1)

    try:
        mixed()
    except st.MismatchError as error:
        assert FIRST
        text = f"MismatchError: {error}"
    except tf.errors.OpError as error:
        assert not FIRST
        text = str(error)
    else:
        raise AssertionError("calls of another order were not found")
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in: {text}"
    check_that_the_job_works()
    expect_error(lambda: two_in_graph(x), "MismatchError", "rank 0", "rank 1", "broadcast")
    check_that_the_job_works()


def check_one_rank_has_another_call() -> None:
    """Rows that differ, in a graph of one rank: each rank is told which other one has them."""
    x = tf.ones([SIZE, 2])
    for name, call in {
        "gather": st.allgather,
        "exchange": lambda x, name: st.alltoall(x, name=name),
    }.items():
        other = tf.function(call) if FIRST else call
        rows = x[:, :1] if FIRST else x
        differs = f"rank {1 - RANK}"
        expect_error(lambda other=other, rows=rows, name=name: other(rows, name), name, differs)
        check_that_the_job_works()


def check_forms() -> None:
    """Tensors of another form are refused by name and rank, where they are given."""
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    sparse = tf.sparse.from_dense(tf.eye(2))
    calls: dict[str, Callable[[object], object]] = {
        "allreduce": lambda x: st.allreduce(x, name="odd"),
        "grouped": lambda x: st.grouped_allreduce([x], name="odd"),
        "push_pull": lambda x: st.push_pull(x, name="odd"),
        "allgather": lambda x: st.allgather(x, "odd"),
        "alltoall": lambda x: st.alltoall(x, name="odd"),
        "broadcast": lambda x: st.broadcast(x, 0, "odd"),
        "reducescatter": lambda x: st.reducescatter(x, name="odd"),
    }
    for value, kind in ((ragged, "RaggedTensor"), (sparse, "SparseTensor"), (["a"], "string")):
        for call in calls.values():
            expect_error(lambda call=call, v=value: call(v), f"rank {RANK}", "tensor odd", kind)
    graph = tf.function(lambda x: st.allreduce(x, name="odd"))
    for value, kind in ((ragged, "RaggedTensor"), (tf.constant(["a"]), "string")):
        try:
            graph(value)
        except Exception as error:
            # AutoGraph makes an error of its own of it, with the same text.
            text = str(error)
        assert "tensor odd" in text and kind in text and f"rank {RANK}" in text, text
    check_that_the_job_works()


st.init()
check_forms()
check_order()
check_one_rank_has_another_call()
st.shutdown()
