"""Trains by model.fit with callbacks; writes the weights it ends with, and loads what it saved."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import sumpter.keras as sk
from sumpter import UnsupportedError

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(os.environ["TEST_FOLDER"])
BATCH, STEPS, EPOCHS = 16, 6, 3

sk.init()
keras.utils.set_random_seed(RANK)
keras.backend.set_floatx("float64")
data = np.random.default_rng(99)
x, y = data.normal(size=(STEPS * BATCH, 8)), data.normal(size=(STEPS * BATCH, 4))
share = BATCH // SIZE


def own(array: np.ndarray) -> np.ndarray:
    """This rank's part of every batch."""
    return array.reshape(STEPS, SIZE, share, -1)[:, RANK].reshape(STEPS * share, -1)


def make(compiled: bool = False) -> keras.Model:
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    optimizer = sk.DistributedOptimizer(keras.optimizers.Adam(1e-2))
    model.compile(optimizer, "mse", jit_compile=compiled)
    return model


model = make()
# The same start in every job.
for variable in model.trainable_variables:
    values = np.random.default_rng(variable.shape[-1]).normal(size=variable.shape)
    variable.assign(values if RANK == 0 else np.zeros(variable.shape))
warmup = sk.callbacks.LearningRateWarmupCallback(1e-2, warmup_epochs=2)
history = model.fit(
    own(x),
    own(y),
    share,
    EPOCHS,
    shuffle=False,
    verbose=0,
    callbacks=[
        sk.callbacks.BroadcastGlobalVariablesCallback(0),
        sk.callbacks.MetricAverageCallback(),
        *([warmup] if SIZE > 1 else []),
    ],
).history
for name, values in history.items():
    mean = sk.allreduce(np.array(values), f"history.{name}")
    assert np.allclose(values, mean), f"ranks have other averages of {name}"
if SIZE > 1:
    assert history["lr"] == [history["lr"][0], 1e-2, 1e-2] and 5e-3 < history["lr"][0] < 1e-2
assert history["loss"][-1] < history["loss"][0]

path = FOLDER / f"model{RANK}.keras"
model.save(path)
assert type(keras.models.load_model(path).optimizer) is keras.optimizers.Adam
loaded = sk.load_model(path)
assert int(loaded.optimizer.iterations) == STEPS * EPOCHS
loaded.fit(own(x), own(y), share, 1, shuffle=False, verbose=0)
model.fit(own(x), own(y), share, 1, shuffle=False, verbose=0)
for one, other in zip(loaded.weights, model.weights, strict=True):
    assert np.array_equal(one.numpy(), other.numpy())

try:
    make(compiled=True).fit(own(x), own(y), share, 1, verbose=0)
except UnsupportedError as error:
    assert "jit_compile=False" in str(error)
else:
    raise AssertionError("a compiled step was not refused")
try:
    sk.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
except UnsupportedError as error:
    assert "no optimizer of Keras 3" in str(error)
else:
    raise AssertionError("an old optimizer was not refused")
whole = np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])
(FOLDER / f"result.{RANK}").write_bytes(whole.tobytes())
sk.shutdown()
