"""Reductions and broadcasts against NumPy, eagerly and in a graph; gradients; bad input."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import sumpter
import sumpter.tensorflow as st

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
EPSILON = 1e-6


def expect_error(kind: type[BaseException], call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"expected {kind}")


def check_values() -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64"):
        kind = tf.as_dtype(dtype).as_numpy_dtype
        every = [((np.arange(12) + rank) % 5).astype(kind).reshape(4, 3) for rank in range(SIZE)]
        total = sum(every[1:], every[0])
        mean = total // SIZE if dtype.startswith("int") else total / kind(SIZE)
        expected = {
            "sum": (lambda x: st.allreduce(x, st.Sum), total),
            "mean": (st.allreduce, mean),
            "max": (lambda x: st.allreduce(x, st.Max), np.maximum.reduce(every)),
            "push_pull": (lambda x: st.push_pull(x, average=False), total),
            "group": (lambda x: st.grouped_allreduce([x, x], st.Sum, "group")[1], total),
            "root": (lambda x: st.broadcast(x, SIZE - 1), every[-1]),
        }
        for name, (call, value) in expected.items():
            for called in (call, tf.function(call)):
                result = called(tf.constant(every[RANK])).numpy()
                assert result.dtype == kind, (name, dtype, result.dtype)
                assert result.tobytes() == value.astype(kind).tobytes(), (name, dtype, result)


def check_gradients() -> None:
    weights = np.random.default_rng(10 + RANK).normal(size=3)
    own = np.random.default_rng(RANK).normal(size=3)
    for call in (
        st.allreduce,
        lambda x: st.allreduce(x, st.Sum),
        lambda x: st.broadcast(x, SIZE - 1),
    ):

        def loss_of(x: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor] = call) -> tf.Tensor:
            return tf.reduce_sum(call(x) ** 2 * weights)

        def gradient_of(
            x: tf.Tensor, loss_of: Callable[[tf.Tensor], tf.Tensor] = loss_of
        ) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = loss_of(x)
            return tape.gradient(loss, x)

        found = gradient_of(tf.constant(own)).numpy()
        compiled = tf.function(gradient_of)(tf.constant(own)).numpy()
        np.testing.assert_array_equal(compiled, found)
        expected = np.zeros(3)
        for rank in range(SIZE):
            for place in range(3):
                step = np.zeros(3)
                step[place] = EPSILON * (rank == RANK)
                change = loss_of(tf.constant(own + step)) - loss_of(tf.constant(own - step))
                total = sumpter.push_pull(change.numpy().reshape(1), average=False)[0]
                if rank == RANK:
                    expected[place] = total / (2 * EPSILON)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def check_bad_input() -> None:
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    for value in (ragged, tf.constant(["a"]), tf.constant([True])):
        expect_error(st.UnsupportedError, lambda v=value: st.allreduce(v, name="odd"), "tensor odd")
    differs = tf.ones(3 + (RANK == 0))
    parts = ("rank 0", "rank 1", "[3]", "[4]")
    expect_error(st.MismatchError, lambda: st.allreduce(differs, name="eager"), "eager", *parts)
    graph = tf.function(lambda x: st.allreduce(x, name="graph"))
    parts = ("MismatchError", "graph", *parts)
    expect_error(tf.errors.OpError, lambda: graph(differs), *parts)
    assert st.allreduce(tf.ones(3), st.Sum).numpy().tolist() == [float(SIZE)] * 3


st.init()
assert (st.rank(), st.size()) == (RANK, SIZE)
check_values()
check_gradients()
check_bad_input()
st.shutdown()
