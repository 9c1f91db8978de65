"""Collectives on tensors of a kind of device, eagerly and in graphs, against NumPy."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import sumpter.tensorflow as st
from common import RANK, WORLD_SIZE

KIND = sys.argv[1]
for gpu in tf.config.list_physical_devices("GPU"):
    # Ranks may share one.
    tf.config.experimental.set_memory_growth(gpu, True)
DEVICE = tf.config.list_logical_devices(KIND)[0].name


def check_collectives(dtype: tf.DType) -> None:
    kind = dtype.as_numpy_dtype
    every = [((np.arange(64) + rank) % 5).astype(kind).reshape(16, 4) for rank in range(WORLD_SIZE)]
    total = sum(every[1:], every[0])
    piece = 16 // WORLD_SIZE
    exchanged = [one[RANK * piece : (RANK + 1) * piece] for one in every]
    expected = {
        "sum": (lambda x: st.allreduce(x, op=st.Sum), total),
        "mean": (st.allreduce, total / kind(WORLD_SIZE)),
        "max": (lambda x: st.allreduce(x, op=st.Max), np.maximum.reduce(every)),
        "push_pull": (lambda x: st.push_pull(x, average=False), total),
        "group": (lambda x: st.grouped_allreduce([x, x], op=st.Sum)[1], total),
        "root": (lambda x: st.broadcast(x, WORLD_SIZE - 1), every[-1]),
        "gather": (st.allgather, np.concatenate(every)),
        "share": (lambda x: st.reducescatter(x, op=st.Sum), np.split(total, WORLD_SIZE)[RANK]),
        "exchange": (st.alltoall, np.concatenate(exchanged)),
    }
    own = tf.constant(every[RANK])
    assert own.device.endswith(DEVICE), own.device
    for name, (call, value) in expected.items():
        for called in (call, tf.function(call)):
            np.testing.assert_array_equal(called(own).numpy(), value.astype(kind), err_msg=name)


def check_training() -> None:
    """A variable of the device, and the gradient of a step that XLA does not compile."""
    weights = tf.Variable(np.full((8, 8), float(RANK)))
    st.broadcast_variables([weights], root_rank=1)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with st.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weights * x)
        (gradient,) = tape.gradient(loss, [weights])
        weights.assign_sub(gradient)
        return gradient

    gradient = step(tf.fill([8, 8], tf.constant(RANK + 1.0, tf.float64)))
    mean = (WORLD_SIZE + 1) / 2
    np.testing.assert_array_equal(gradient.numpy(), np.full((8, 8), mean))
    np.testing.assert_array_equal(weights.numpy(), np.full((8, 8), 1 - mean))


st.init()
with tf.device(DEVICE):
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
        check_collectives(dtype)
    check_training()
st.shutdown()
