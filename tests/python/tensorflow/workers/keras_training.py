"""Trains by model.fit; writes the weights it ends with. Kills servers that arguments name."""

from __future__ import annotations

import os
import signal
import sys

import keras
import numpy as np

import sumpter.keras as sk
from common import RANK, WORLD_SIZE, leave_result

BATCH, STEPS, EPOCHS = 16, 6, 3
SHARE = BATCH // WORLD_SIZE
KILLED = [int(pid) for pid in sys.argv[1:]]


class Kill(keras.callbacks.Callback):
    """Kills a server within each epoch, while other ranks may be in another step."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if RANK == 0 and KILLED and batch == 3:
            os.kill(KILLED.pop(), signal.SIGKILL)


def own(array: np.ndarray) -> np.ndarray:
    """This rank's part of every batch."""
    return array.reshape(STEPS, WORLD_SIZE, SHARE, -1)[:, RANK].reshape(STEPS * SHARE, -1)


sk.init()
keras.backend.set_floatx("float64")
data = np.random.default_rng(99)
x, y = data.normal(size=(STEPS * BATCH, 8)), data.normal(size=(STEPS * BATCH, 4))
layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(4)]
model = keras.Sequential([keras.Input((8,)), *layers])
# The same start in every job: rank 0's, which is constant.
for variable in model.trainable_variables:
    values = np.random.default_rng(variable.shape[-1]).normal(size=variable.shape)
    variable.assign(values if RANK == 0 else np.zeros(variable.shape))
model.compile(
    sk.DistributedOptimizer(keras.optimizers.Adam(1e-2)),
    "mse",
    jit_compile="auto" if keras.backend.backend() == "jax" else False,
)
callbacks = [sk.callbacks.BroadcastGlobalVariablesCallback(0), Kill()]
model.fit(own(x), own(y), SHARE, EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
assert RANK != 0 or not KILLED, "no server was killed"
leave_result(np.concatenate([v.numpy().ravel() for v in model.trainable_variables]).tobytes())
sk.shutdown()
