"""Keras on JAX: fit() with callbacks; writes the weights it ends with, and loads what it saved.

Without a job's ranks it is the one process that the others are compared with.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import keras
import numpy as np

import sumpter.keras as sk
from sumpter.keras import elastic

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(os.environ["TEST_FOLDER"])
BATCH, STEPS, EPOCHS = 16, 6, 3

sk.init()
assert "tensorflow" not in sys.modules
keras.utils.set_random_seed(RANK)
keras.backend.set_floatx("float64")
data = np.random.default_rng(99)
x, y = data.normal(size=(STEPS * BATCH, 8)), data.normal(size=(STEPS * BATCH, 4))
share = BATCH // SIZE


def own(array: np.ndarray) -> np.ndarray:
    """This rank's part of every batch."""
    return array.reshape(STEPS, SIZE, share, -1)[:, RANK].reshape(STEPS * share, -1)


def flatten(model: keras.Model) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])


layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(4)]
model = keras.Sequential([keras.Input((8,)), *layers])
# The same start in every job.
for variable in model.trainable_variables:
    values = np.random.default_rng(variable.shape[-1]).normal(size=variable.shape)
    variable.assign(values if RANK == 0 else np.zeros(variable.shape))
model.compile(sk.DistributedOptimizer(keras.optimizers.Adam(1e-2)), "mse")
assert model.jit_compile
state = elastic.KerasState(model, batch=0, epoch=0)
warmup = sk.callbacks.LearningRateWarmupCallback(1e-2, warmup_epochs=2)


class Constant(keras.callbacks.Callback):
    """As the warm-up of two ranks is, for the one process."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        epoch = state.epoch + batch / STEPS + 1 / STEPS
        if state.epoch < 2:
            self.model.jax_state_sync()
            self.model.optimizer.learning_rate = 1e-2 * (epoch / 2 + 1) / 2


history = model.fit(
    *(own(x), own(y), share, EPOCHS),
    shuffle=False,
    verbose=0,
    callbacks=[
        sk.callbacks.BroadcastGlobalVariablesCallback(0),
        sk.callbacks.MetricAverageCallback(),
        warmup if SIZE > 1 else Constant(),
        elastic.UpdateBatchStateCallback(state),
        elastic.UpdateEpochStateCallback(state),
        # It reads the variables amid of an epoch.
        elastic.CommitStateCallback(state, 4),
    ],
).history
assert (state.epoch, state.batch) == (EPOCHS, 0)
for name, values in history.items():
    mean = sk.allreduce(np.array(values), f"history.{name}")
    assert np.allclose(values, mean), f"ranks have other averages of {name}"
assert history["loss"][-1] < history["loss"][0]
trained = flatten(model)

path = FOLDER / f"model{RANK}.keras"
model.save(path)
loaded = sk.load_model(path)
assert int(loaded.optimizer.iterations) == STEPS * EPOCHS
for one in (loaded, model):
    one.fit(own(x), own(y), share, 1, shuffle=False, verbose=0)
np.testing.assert_array_equal(flatten(loaded), flatten(model))
state.restore()
np.testing.assert_array_equal(flatten(model), trained)

dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
small = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False), dense])
small.layers[0].set_weights([np.ones((1, 1))])
partial = sk.PartialDistributedOptimizer(
    keras.optimizers.SGD(1.0), "partial", gradient_predivide_factor=2.0, local_layers=dense
)
partial.apply([np.full((1, 1), RANK + 1.0)] * 2, small.trainable_variables)
weights = [float(one.numpy()[0, 0]) for one in small.trainable_variables]
assert weights == [1 - (SIZE + 1) / 2, 1 - (RANK + 1) / SIZE], weights
(FOLDER / f"result.{RANK}").write_bytes(trained.tobytes())
sk.shutdown()
