"""Trains step after step in a graph, until the test has seen enough."""

from __future__ import annotations

import tensorflow as tf

import sumpter.tensorflow as st
from common import FOLDER, announce

STEPS = 8
stop = FOLDER / "stop"
matrix, vector = tf.Variable(tf.ones([64, 64])), tf.Variable(tf.ones(64))


@tf.function
def train() -> None:
    with st.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(tf.linalg.matvec(matrix, vector) ** 2)
    for variable, gradient in zip(
        (matrix, vector), tape.gradient(loss, [matrix, vector]), strict=True
    ):
        variable.assign_sub(1e-6 * gradient)


st.init()
step, stops = 0, 0
while stops < st.size():
    train()
    step += 1
    if step == STEPS and st.rank() == 0:
        announce("busy")
    stops = st.allreduce(tf.constant(int(stop.exists())), op=st.Sum, name="stops").numpy()
st.shutdown()
