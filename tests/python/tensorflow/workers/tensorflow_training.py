"""Trains a Keras model in a custom loop; writes the parameters it ends with. Kills servers that
arguments name.
"""

from __future__ import annotations

import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import sumpter.tensorflow as st
from common import leave_result

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH, STEPS = 16, 20
KILLED = [int(pid) for pid in sys.argv[1:]]

st.init()
keras.utils.set_random_seed(RANK)
keras.backend.set_floatx("float64")
model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(4)])
model.build((None, 8))
# The same start in every job: rank 0's.
st.broadcast_variables(model.variables)
optimizer = keras.optimizers.Adam(1e-2)
optimizer.build(model.trainable_variables)


@tf.function
def step(x: tf.Tensor, y: tf.Tensor) -> None:
    with st.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


data = np.random.default_rng(99)
for number in range(STEPS):
    if RANK == 0 and KILLED and number % 5 == 4:
        os.kill(KILLED.pop(), signal.SIGKILL)
    x, y = data.normal(size=(BATCH, 8)), data.normal(size=(BATCH, 4))
    own = slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)
    step(tf.constant(x[own]), tf.constant(y[own]))
assert RANK != 0 or not KILLED, "no server was killed"
whole = np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])
leave_result(whole.tobytes())
st.shutdown()
