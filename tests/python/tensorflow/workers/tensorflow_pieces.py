"""Pieces of unequal sizes between ranks, against NumPy and finite differences; bad input."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import sumpter
import sumpter.tensorflow as st
from sumpter._core import membership
from sumpter._core.pieces import padded_rows
from sumpter.tensorflow.pieces import _rounded

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
EPSILON = 1e-6


def splits_of(rank: int) -> list[int]:
    """To rank i: as many rows as this; none in one place."""
    return [(rank + 2 * other) % 4 for other in range(SIZE)]


SPLITS = splits_of(RANK)
ROWS = sum(SPLITS)


def array_of(rank: int, rows: int, dtype: str = "float64") -> np.ndarray:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    return (np.random.default_rng(rank).integers(0, 9, (rows, 2)) + rank).astype(kind)


def moved(rows_of: Callable[[int], list[int]], dtype: str) -> np.ndarray:
    """What this rank gets of an exchange."""
    pieces = []
    for rank in range(SIZE):
        splits = rows_of(rank)
        start = sum(splits[:RANK])
        pieces.append(array_of(rank, sum(splits), dtype)[start : start + splits[RANK]])
    return np.concatenate(pieces)


def check_values() -> None:
    for dtype in ("float32", "bfloat16", "int8"):
        own, even = array_of(RANK, ROWS, dtype), array_of(RANK, 3 * SIZE, dtype)
        expected = moved(splits_of, dtype)
        for call in (st.alltoall, tf.function(st.alltoall)):
            for splits in (SPLITS, tf.constant(SPLITS, tf.int64)):
                rows, received = call(tf.constant(own), splits)
                assert rows.numpy().tobytes() == expected.tobytes(), (dtype, rows)
                assert received.numpy().tolist() == [splits_of(rank)[RANK] for rank in range(SIZE)]
                assert received.dtype == getattr(splits, "dtype", tf.int32)
            rows = call(tf.constant(even)).numpy()
            assert rows.tobytes() == moved(lambda _: [3] * SIZE, dtype).tobytes(), (dtype, rows)
    # Numbers of rows that are known only when the program runs.
    dynamic = tf.function(
        st.alltoall,
        input_signature=[tf.TensorSpec([None, 2], tf.float64), tf.TensorSpec([None], tf.int32)],
    )
    rows, _ = dynamic(array_of(RANK, ROWS), SPLITS)
    assert rows.numpy().tobytes() == moved(splits_of, "float64").tobytes()
    bad = [*SPLITS[:-1], SPLITS[-1] + 1]
    if RANK == 0:
        expect_error(
            tf.errors.InvalidArgumentError, lambda: dynamic(array_of(0, ROWS), bad), "add up to"
        )
    st.barrier()
    # Blocks of 103 rows, which travel as 104.
    many = [103] * SIZE
    rows, _ = st.alltoall(tf.constant(array_of(RANK, 103 * SIZE)), many)
    assert rows.numpy().tobytes() == moved(lambda _: many, "float64").tobytes()
    nothing, received = st.alltoall(tf.ones([0, 2]), [0] * SIZE)
    assert nothing.shape == (0, 2) and received.numpy().tolist() == [0] * SIZE


def check_shares() -> None:
    """Rows that cannot be shared out evenly, alone and in a group, of known and unknown number."""
    rows = 2 * SIZE + 1
    total = sum(array_of(rank, rows) for rank in range(SIZE))
    own = np.array_split(total, SIZE)[RANK]
    x = tf.constant(array_of(RANK, rows))
    dynamic = tf.function(st.reducescatter, input_signature=[tf.TensorSpec([None, 2], tf.float64)])
    for call in (st.reducescatter, tf.function(st.reducescatter), dynamic):
        np.testing.assert_array_equal(call(x).numpy(), own / SIZE)
    for call in (st.grouped_reducescatter, tf.function(st.grouped_reducescatter)):
        one, two = call([x, x[:SIZE]], op=st.Sum, postscale_factor=2.0)
        np.testing.assert_array_equal(one.numpy(), 2 * own)
        np.testing.assert_array_equal(two.numpy(), 2 * total[RANK : RANK + 1])


def check_names() -> None:
    """Ever new numbers of rows take as many names as there are sizes that they are padded to."""
    before, sizes = len(membership.current().declared()), set()
    for rows in range(100, 160):
        sizes.add(padded_rows(rows + SIZE - 1))
        own = array_of(RANK, rows + RANK)
        expected = np.concatenate([array_of(rank, rows + rank) for rank in range(SIZE)])
        found = st.allgather(tf.constant(own), "ever")
        assert found.numpy().tobytes() == expected.tobytes(), (rows, found)
        slices = tf.IndexedSlices(tf.constant(own), tf.range(rows + RANK), [2 * rows, 2])
        found = st.allreduce(slices, op=st.Sum, name="slices")
        assert found.values.numpy().tobytes() == expected.tobytes(), (rows, found)
    # Of each size a name for each rank's rows, values and indices; and the numbers of rows.
    names = len(membership.current().declared()) - before
    assert names <= SIZE * (3 * len(sizes) + 2), f"{names} names of {len(sizes)} sizes"
    numbers = [0, 1, 31, 32, 33, 100, 511, 12_345]
    for call in (_rounded, tf.function(_rounded)):
        found = call(tf.constant(numbers, tf.int64)).numpy().tolist()
        assert found == [padded_rows(rows) for rows in numbers], found


def group(*results: tf.Tensor) -> tf.Tensor:
    return tf.concat([tf.reshape(one, [-1]) for one in results], axis=0)


def check_gradients() -> None:
    """The gradient of the sum of all ranks' losses, against differences."""
    shape = (ROWS, 2)
    uneven = 2 * SIZE + 1
    calls: dict[str, tuple[tuple[int, int], Callable[[tf.Tensor], tf.Tensor]]] = {
        "alltoall": (shape, lambda x: st.alltoall(x, SPLITS, "alltoall")[0]),
        "even alltoall": ((SIZE, 2), lambda x: st.alltoall(x, name="even")),
        "reducescatter": ((uneven, 2), lambda x: st.reducescatter(x, name="share")),
        "grouped reducescatter": (
            (uneven, 2),
            lambda x: group(*st.grouped_reducescatter([x, x[:SIZE] ** 2], op=st.Sum, name="g")),
        ),
        "allgather": ((RANK + 1, 2), lambda x: st.allgather(x, "gather")),
        "grouped allgather": (
            (RANK + 1, 2),
            lambda x: group(*st.grouped_allgather([x, x[:1] ** 2], "gathers")),
        ),
        "grouped allreduce": (
            (3, 2),
            lambda x: group(*st.grouped_allreduce([x, x**2], name="reduce")),
        ),
        "grouped broadcast": (
            (3, 2),
            lambda x: group(*st.grouped_broadcast([x, x**2], SIZE - 1, "root")),
        ),
    }
    for name, (of, call) in calls.items():
        own = np.random.default_rng(RANK).normal(size=of)

        def loss_of(x: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor] = call) -> tf.Tensor:
            return (RANK + 1.0) * tf.reduce_sum(call(x) ** 2)

        def gradient_of(
            x: tf.Tensor, loss_of: Callable[[tf.Tensor], tf.Tensor] = loss_of
        ) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = loss_of(x)
            return tape.gradient(loss, x)

        found = gradient_of(tf.constant(own)).numpy()
        compiled = tf.function(gradient_of)(tf.constant(own)).numpy()
        # TensorFlow rewrites arithmetic of a graph.
        np.testing.assert_allclose(compiled, found, rtol=1e-13)
        loss = tf.function(loss_of)
        for rank in range(SIZE):
            # One rank goes a step; what all losses change by is along its gradient.
            way = np.random.default_rng(100 + rank).normal(size=of)
            step = way * (EPSILON if rank == RANK else 0.0)
            change = loss(tf.constant(own + step)) - loss(tf.constant(own - step))
            total = sumpter.push_pull(change.numpy().reshape(1), average=False)[0]
            if rank == RANK:
                expected = total / (2 * EPSILON)
                np.testing.assert_allclose((found * way).sum(), expected, rtol=1e-6, err_msg=name)


def expect_error(kind: type[BaseException], call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"expected {kind}")


def check_bad_input() -> None:
    x = tf.ones([3, 2])
    expect_error(ValueError, lambda: st.alltoall(x, [4] * SIZE), "add up to the 3 rows")
    expect_error(ValueError, lambda: st.alltoall(x, [3] + [0] * SIZE), f"list of {SIZE}")
    expect_error(ValueError, lambda: st.alltoall(x, [1.5] * SIZE), "whole numbers")
    expect_error(ValueError, lambda: st.alltoall(x[: SIZE - 1]), "evenly among")
    expect_error(ValueError, lambda: st.alltoall(1.0, name="one"), "tensor one needs rows")
    expect_error(ValueError, lambda: st.reducescatter(1.0), "needs rows")
    expect_error(
        st.UnsupportedError,
        lambda: st.reducescatter(x, compression=st.Compression.bf16),
        "as they are",
    )
    differs = tf.ones([SIZE, 2 + (RANK == 0)])
    expect_error(st.MismatchError, lambda: st.alltoall(differs, name="rows"), "rows", "rank 0")
    assert st.allreduce(tf.ones(3), op=st.Sum).numpy().tolist() == [float(SIZE)] * 3


st.init()
check_values()
check_shares()
check_names()
check_gradients()
check_bad_input()
st.shutdown()
