"""The last rank is killed within a tf.function, before its gradients are with the others."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import sumpter.tensorflow as st
from common import RANK, WORLD_SIZE, check_death, die

LAST = WORLD_SIZE - 1
DEATH = 3


def may_die(number: np.ndarray) -> np.int32:
    if RANK == LAST and number == DEATH:
        die()
    return np.int32(0)


@tf.function
def train(weights: tf.Variable, steps: tf.Tensor) -> None:
    for number in tf.range(steps):
        with st.DistributedGradientTape(tf.GradientTape(), name="killed") as tape:
            loss = tf.reduce_sum(weights**2)
            tf.numpy_function(may_die, [number], tf.int32)
        (gradient,) = tape.gradient(loss, [weights])
        weights.assign_sub(0.1 * gradient)


st.init()
try:
    train(tf.Variable(tf.ones(1000)), tf.constant(100))
except tf.errors.OpError as error:
    check_death(error, LAST, "killed")
else:
    raise AssertionError("nothing was raised")
# So is every later call.
try:
    st.allreduce(tf.ones(3), name="later")
except st.PeerLostError as error:
    assert f"rank {LAST}" in str(error), error
else:
    raise AssertionError("nothing was raised")
