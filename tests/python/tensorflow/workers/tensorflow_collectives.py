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
            "sum": (lambda x: st.allreduce(x, op=st.Sum), total),
            "mean": (st.allreduce, mean),
            "max": (lambda x: st.allreduce(x, op=st.Max), np.maximum.reduce(every)),
            "push_pull": (lambda x: st.push_pull(x, average=False), total),
            "group": (lambda x: st.grouped_allreduce([x, x], op=st.Sum, name="group")[1], total),
            "root": (lambda x: st.broadcast(x, SIZE - 1), every[-1]),
            "gather": (st.allgather, np.concatenate(every)),
            "uneven": (lambda x: st.allgather(x[: RANK + 1], "uneven"), uneven(every)),
            "share": (lambda x: st.reducescatter(x, op=st.Sum), np.split(total, SIZE)[RANK]),
            "twice": (lambda x: st.allreduce(x, op=st.Sum, postscale_factor=2.0), 2 * total),
        }
        for name, (call, value) in expected.items():
            for called in (call, tf.function(call)):
                result = called(tf.constant(every[RANK])).numpy()
                assert result.dtype == kind, (name, dtype, result.dtype)
                assert result.tobytes() == value.astype(kind).tobytes(), (name, dtype, result)


def uneven(every: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([one[: rank + 1] for rank, one in enumerate(every)])


def check_gradients() -> None:
    weights = np.random.default_rng(10 + RANK).normal(size=3)
    own = np.random.default_rng(RANK).normal(size=3)
    for call in (
        st.allreduce,
        lambda x: st.allreduce(x, op=st.Sum),
        lambda x: st.broadcast(x, SIZE - 1),
        lambda x: tf.reshape(st.allgather(x), (SIZE, 3)),
        lambda x: st.allreduce(x, op=st.Sum, prescale_factor=0.5),
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


def check_sets_objects_and_slices() -> None:
    last = st.ProcessSet([SIZE - 1])
    st.add_process_set(last)
    if last.included():
        assert st.allreduce(tf.ones(2), op=st.Sum, process_set=last).numpy().tolist() == [1, 1]
    own = {"rank": RANK, "text": "x" * 100 * RANK}
    assert st.broadcast_object(own if RANK == 1 else None, 1)["rank"] == 1
    assert [one["rank"] for one in st.allgather_object(own)] == list(range(SIZE))
    slices = tf.IndexedSlices(tf.ones([RANK + 1, 2]), tf.range(RANK + 1), dense_shape=[SIZE, 2])
    dense = tf.convert_to_tensor(st.allreduce(slices, op=st.Sum)).numpy()
    assert dense[:, 0].tolist() == [SIZE - row for row in range(SIZE)]
    ones = st.allreduce(tf.ones([64, 64]), compression=st.Compression.bf16, name="coded")
    assert ones.numpy().tolist() == [[1.0] * 64] * 64
    numbers = tf.function(lambda: (st.rank_op(), st.size_op()))()
    assert [number.numpy() for number in numbers] == [RANK, SIZE]


def check_tapes() -> None:
    """A matrix by a codec, a vector that has none, a lookup's slices, and a division in two parts.

    All numbers are those that bf16 holds.
    """
    matrix, vector, table = tf.Variable(tf.ones([64, 64])), tf.Variable(tf.ones(3)), tf.ones([4, 2])
    table = tf.Variable(table)
    sources = [matrix, vector, table]
    for options in (
        {"compression": "bf16"},
        {"compression": "bf16", "sparse_as_dense": True},
        {"gradient_predivide_factor": 2.0},
    ):
        name = "tape." + ".".join(options)
        with st.DistributedGradientTape(tf.GradientTape(), name=name, **options) as tape:
            rows = tf.gather(table, [RANK % 4])
            parts = [tf.reduce_sum(one) for one in (matrix, vector, rows)]
            loss = (RANK + 1.0) * tf.add_n(parts)
        found = tape.gradient(loss, sources)
        assert isinstance(found[2], tf.IndexedSlices) == ("sparse_as_dense" not in options)
        mean = (SIZE + 1) / 2
        for gradient in found[:2]:
            assert np.all(gradient.numpy() == mean), (options, gradient)
        expected = [(rank + 1) / SIZE for rank in range(SIZE)]
        dense = tf.convert_to_tensor(found[2]).numpy()
        assert dense[:SIZE, 0].tolist() == expected, (options, dense)
    unused = tf.Variable(1.0)
    with st.DistributedGradientTape(tf.GradientTape(), name="unused") as tape:
        loss = vector[0] * (RANK + 1.0)
    assert tape.gradient(loss, {"a": vector, "b": unused})["b"] is None


def check_bad_input() -> None:
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    for value in (ragged, tf.constant(["a"]), tf.constant([True])):
        expect_error(st.UnsupportedError, lambda v=value: st.allreduce(v, name="odd"), "tensor odd")
    expect_error(ValueError, lambda: st.allreduce(1.0, average=True, op=st.Sum), "not both")
    expect_error(st.UnsupportedError, lambda: st.allreduce(1.0, op=st.Adasum), "Adasum")
    with tf.GradientTape() as tape:
        tape.watch(given := tf.ones(2))
        maximum = st.allreduce(given, op=st.Max)
    expect_error(
        st.UnsupportedError, lambda: tape.gradient(maximum, given), "no gradient of", "max"
    )
    differs = tf.ones(3 + (RANK == 0))
    parts = ("rank 0", "[3]", "[4]")
    expect_error(st.MismatchError, lambda: st.allreduce(differs, name="eager"), "eager", *parts)
    graph = tf.function(lambda x: st.allreduce(x, name="graph"))
    parts = ("MismatchError", "graph", *parts)
    expect_error(tf.errors.OpError, lambda: graph(differs), *parts)
    assert st.allreduce(tf.ones(3), op=st.Sum).numpy().tolist() == [float(SIZE)] * 3


st.init()
assert (st.rank(), st.size()) == (RANK, SIZE)
check_values()
check_gradients()
check_sets_objects_and_slices()
check_tapes()
check_bad_input()
st.shutdown()
