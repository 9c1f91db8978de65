"""The last rank is killed inside of fit(); the others say so within seconds."""

from __future__ import annotations

import keras
import numpy as np

import sumpter.keras as sk
from common import RANK, WORLD_SIZE, check_death, die

LAST = WORLD_SIZE - 1


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch == 2 and RANK == LAST:
            die()


sk.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
on_jax = keras.backend.backend() == "jax"
optimizer = sk.DistributedOptimizer(keras.optimizers.SGD(0.1))
model.compile(optimizer, "mse", jit_compile=on_jax)
try:
    model.fit(np.ones((80, 4)), np.ones((80, 3)), 8, 1, verbose=0, callbacks=[Kill()])
except Exception as error:
    check_death(error, LAST, "gradients")
else:
    raise AssertionError("nothing was raised")
