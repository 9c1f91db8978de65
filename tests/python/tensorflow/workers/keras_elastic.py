"""Trains by fit() with workers that die and join, and compares with one process alone.

One worker is killed inside of fit(). The others go back to the last commit, and go on until
another has taken its place. Leaves the final parameters.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import keras
import numpy as np

import sumpter.keras as sk
from common import announce, leave_result
from sumpter.keras import elastic

EPOCHS, STEPS, COMMIT_EVERY = 6, 10, 4
DEATH, REUNION = (2, 6), (4, 3)  # epoch and batch
BATCH, RANKS = 24, 3
ON_JAX = keras.backend.backend() == "jax"
# As in tensorflow_elastic.py. On JAX, Keras divides by the rows of a batch in single precision.
TOLERANCE = 1e-6 if ON_JAX else 1e-9
keras.backend.set_floatx("float64")


def make() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(4)]
    return keras.Sequential([keras.Input((8,)), *layers])


def shares(epoch: int, first: int, rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """This rank's part of the batches of an epoch, from one on."""
    data = np.random.default_rng(epoch)
    both = data.normal(size=(STEPS, BATCH, 8)), data.normal(size=(STEPS, BATCH, 4))
    x, y = (array[first:, rank::size].reshape(-1, array.shape[-1]) for array in both)
    return x, y


def fit(model: keras.Model, epoch: int, first: int, rank: int, size: int, *callbacks: Any) -> None:
    x, y = shares(epoch, first, rank, size)
    model.fit(x, y, BATCH // size, 1, shuffle=False, verbose=0, callbacks=list(callbacks))


def flatten(model: keras.Model) -> np.ndarray:
    weights = [keras.ops.convert_to_numpy(one).ravel() for one in model.trainable_variables]
    return np.concatenate(weights)


class Fate(keras.callbacks.Callback):
    """What happens at some batches."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        place = state.epoch, state.batch
        if place == DEATH and "doomed" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        if place == REUNION and sk.size() < RANKS:
            if sk.rank() == 0:
                announce("alone")
            while True:  # until the commit is interrupted
                state.commit()


sk.init()
model = make()
if "newcomer" in sys.argv:
    for variable in model.trainable_variables:
        variable.assign(np.zeros(variable.shape))
model.compile(sk.DistributedOptimizer(keras.optimizers.Adam(1e-2)), "mse", jit_compile=ON_JAX)
state = elastic.KerasState(model, batch=0, epoch=0)
resets: list[tuple[int, int, int]] = []
state.register_reset_callbacks([lambda: resets.append((sk.size(), state.epoch, state.batch))])


@elastic.run
def train(state: elastic.KerasState) -> None:
    while state.epoch < EPOCHS:
        fit(
            *(model, state.epoch, state.batch, sk.rank(), sk.size(), Fate()),
            elastic.UpdateBatchStateCallback(state),
            elastic.UpdateEpochStateCallback(state),
            elastic.CommitStateCallback(state, COMMIT_EVERY),
        )


train(state)
assert (state.epoch, state.batch) == (EPOCHS, 0)
# Back to the commit after four batches of the third epoch; then on from where they waited.
expected = [] if "newcomer" in sys.argv else [(2, 2, 4), (3, *REUNION)]
assert resets == expected, resets
assert int(model.optimizer.iterations) == EPOCHS * STEPS
found, alone = flatten(model), make()
alone.compile(keras.optimizers.Adam(1e-2), "mse", jit_compile=False)
for epoch in range(EPOCHS):
    fit(alone, epoch, 0, 0, 1)
error = float(np.abs(found - flatten(alone)).max())
assert error <= TOLERANCE, f"differs by {error}"
leave_result(found.tobytes())
