"""Calls on tensors that one rank cannot make, eagerly and in graphs: an error on all ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import sumpter.keras as sk
import sumpter.tensorflow as st
from refusing import ODD, RANK, WORLD_SIZE, refused, refused_at_once

ONES = tf.ones([2 * WORLD_SIZE, 2])
RAGGED = tf.ragged.constant([[1.0], [2.0, 3.0]])
TEXT = tf.constant(["a", "b"])
SLICES = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
INT_SLICES = tf.IndexedSlices(tf.ones([1, 2], tf.int32), tf.constant([0]), tf.constant([4, 2]))
BAD_SLICES = tf.IndexedSlices(tf.constant([["a", "b"]]), tf.constant([0]), tf.constant([4, 2]))


def in_graph(tensor: object, name: str | None, **options: object) -> object:
    return tf.function(lambda: st.allreduce(tensor, name=name), **options)()


def tape_gradients(gradients: list[object], name: str) -> object:
    """What a distributed tape makes of these, as if they had been computed."""

    class Tape:
        def gradient(self, target: object, sources: object, *_: object) -> list[object]:
            return gradients

    return st.DistributedGradientTape(Tape(), name=name).gradient(None, [None] * len(gradients))


def fit(kind: tf.DType, name: str) -> None:
    """Makes a step by gradients of which one has elements of a kind."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = sk.DistributedOptimizer(keras.optimizers.SGD(), name=name)
    optimizer.build(model.trainable_variables)
    kernel, bias = (tf.ones(variable.shape) for variable in model.trainable_variables)
    optimizer.apply([tf.cast(kernel, kind), bias])


Call = Callable[[str | None], object]
# What one rank calls, what the others call, and what is wrong.
CASES: dict[str, tuple[Call, Call, str]] = {
    "ragged": (
        lambda name: st.allreduce(RAGGED, name=name),
        lambda name: st.allreduce(ONES, name=name),
        "is a RaggedTensor",
    ),
    "string in a graph": (
        lambda name: in_graph(TEXT, name),
        lambda name: in_graph(ONES, name),
        "is of string",
    ),
    "group": (
        lambda name: st.grouped_allreduce([ONES, TEXT], name=name),
        lambda name: st.grouped_allreduce([ONES, ONES], name=name),
        "is of string",
    ),
    "type": (
        lambda name: st.push_pull(tf.cast(ONES, tf.complex64), name=name),
        lambda name: st.push_pull(ONES, name=name),
        "complex64",
    ),
    "compiled": (
        lambda name: in_graph(ONES, name, jit_compile=True),
        lambda name: in_graph(ONES, name),
        "which XLA compiles",
    ),
    "codec": (
        lambda name: st.allreduce(tf.range(4), name=name, op=st.Sum, compression="int8"),
        lambda name: st.allreduce(tf.range(4), name=name, op=st.Sum),
        "int32",
    ),
    "async": (
        lambda name: st.push_pull(ONES, name=name, enable_async=True),
        lambda name: st.push_pull(ONES, name=name),
        "enable_async",
    ),
    "slices": (
        lambda name: st.allreduce(BAD_SLICES, name=name),
        lambda name: st.allreduce(SLICES, name=name),
        "is of string",
    ),
    "gather": (
        lambda name: st.allgather(RAGGED, name),
        lambda name: st.allgather(ONES, name),
        "is a RaggedTensor",
    ),
    "exchange": (
        lambda name: st.alltoall(ONES, [0] * WORLD_SIZE, name),
        lambda name: st.alltoall(ONES, None, name),
        "splits are",
    ),
    "root": (
        lambda name: st.broadcast(ONES, WORLD_SIZE, name),
        lambda name: st.broadcast(ONES, ODD, name),
        "root_rank is",
    ),
    "scatter": (
        lambda name: st.reducescatter(tf.constant(1.0), name=name),
        lambda name: st.reducescatter(ONES, name=name),
        "needs rows",
    ),
    "tape": (
        lambda name: tape_gradients([ONES, TEXT], name or "gradients"),
        lambda name: tape_gradients([ONES, ONES], name or "gradients"),
        "is of string",
    ),
    "tape of integers": (
        lambda name: tape_gradients([ONES, tf.cast(ONES, tf.int32)], name or "gradients"),
        lambda name: tape_gradients([ONES, ONES], name or "gradients"),
        "integers would be rounded",
    ),
    "tape of slices of integers": (
        lambda name: tape_gradients([INT_SLICES], name or "gradients"),
        lambda name: tape_gradients([SLICES], name or "gradients"),
        "integers would be rounded",
    ),
    "optimizer": (
        lambda name: fit(tf.complex64, name or "gradients"),
        lambda name: fit(tf.float32, name or "gradients"),
        "complex64",
    ),
    "optimizer of integers": (
        lambda name: fit(tf.int64, name or "gradients"),
        lambda name: fit(tf.float32, name or "gradients"),
        "int64",
    ),
    "value": (
        lambda name: sk.allreduce("text", name),
        lambda name: sk.allreduce(1.0, name),
        "",
    ),
    "gathered value": (
        lambda name: sk.allgather("text", name),
        lambda name: sk.allgather(1.0, name),
        "",
    ),
    "value of objects": (
        lambda name: sk.broadcast(np.array([None]), ODD, name),
        lambda name: sk.broadcast(np.array([1.0]), ODD, name),
        "broadcast_object()",
    ),
    "gathered objects": (
        lambda name: sk.allgather(np.array([None]), name),
        lambda name: sk.allgather(np.array([1.0]), name),
        "broadcast_object()",
    ),
    "object": (
        lambda name: st.allgather_object(lambda: None, name=name),
        lambda name: st.allgather_object(None, name=name),
        "pickle",
    ),
}


def metrics(bad: bool) -> None:
    logs = {"accuracy": "high" if bad else 1.0, "loss": 2.0}
    sk.callbacks.MetricAverageCallback().on_epoch_end(0, logs)


def barrier() -> None:
    st.barrier()


def check_later(name: str | None) -> None:
    """The next calls match, under the same name and others."""
    total = float(sum(range(WORLD_SIZE)))
    own = tf.fill([3], float(RANK))
    for again in (name, "another", None):
        for found in (
            st.allreduce(own, op=st.Sum, name=again),
            tf.function(lambda again=again: st.allreduce(own, op=st.Sum, name=again))(),
            st.broadcast(own, 1, again) * total,
        ):
            np.testing.assert_array_equal(found, np.full(3, total))
        assert st.allgather(own[:1], again).numpy().tolist() == list(range(WORLD_SIZE))


st.init()
if sys.argv[1] == "named":
    for word, (bad, good, reason) in CASES.items():
        refused_at_once(
            lambda bad=bad, word=word: bad(word),
            lambda good=good, word=word: good(word),
            reason,
            barrier,
        )
        check_later(word)
    refused_at_once(lambda: metrics(True), lambda: metrics(False), "could not convert", barrier)
else:
    for word in ("string in a graph", "gather"):
        bad, good, reason = CASES[word]
        refused(lambda bad=bad: bad(None), lambda good=good: good(None), reason, barrier)
        check_later(None)
st.shutdown()
