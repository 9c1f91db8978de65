"""Rank 0 goes on by fit() from a model that it has trained, and the others from a new one.

With "unbuilt" the new one has no variables before its first batch. Leaves the final weights.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

import sumpter.keras as sk
from common import FOLDER, RANK, leave_result

BATCH, STEPS, TRAINED = 8, 4, 5
ON_JAX = keras.backend.backend() == "jax"
UNBUILT = sys.argv[1] == "unbuilt"


def make(unbuilt: bool, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers if unbuilt else [keras.Input((4,)), *layers])
    model.compile(optimizer, "mse", jit_compile=ON_JAX)
    return model


def batches(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count * BATCH, 4))
    return x, x.sum(axis=1)


def flatten(model: keras.Model) -> np.ndarray:
    return np.concatenate([keras.ops.convert_to_numpy(one).ravel() for one in model.weights])


class Start(keras.callbacks.Callback):
    """What training begins with, after the broadcast."""

    weights = np.empty(0)

    def on_train_begin(self, logs: Any = None) -> None:
        if self.model.built:
            self.weights = flatten(self.model)


sk.init()
keras.utils.set_random_seed(RANK)
if RANK == 0:
    trained = make(False, keras.optimizers.Adam(1e-2))
    trained.fit(*batches(TRAINED, 7), BATCH, 1, verbose=0)
    trained.save(FOLDER / "trained.keras")
    model = sk.load_model(FOLDER / "trained.keras")
    assert model.optimizer.built and int(model.optimizer.iterations) == TRAINED
else:
    model = make(UNBUILT, sk.DistributedOptimizer(keras.optimizers.Adam(1e-2)))
    assert not model.optimizer.built and model.built != UNBUILT
start = Start()
callbacks = [sk.callbacks.BroadcastGlobalVariablesCallback(0), start]
model.fit(*batches(STEPS, RANK), BATCH, 1, shuffle=False, verbose=0, callbacks=callbacks)
assert int(model.optimizer.iterations) == TRAINED + STEPS
if not UNBUILT:
    # Before the first batch, whose gradients are those of the trained weights on all ranks.
    np.testing.assert_array_equal(start.weights, sk.broadcast(start.weights, 0, "start"))
    if RANK == 0:
        np.testing.assert_array_equal(start.weights, flatten(trained))
states = [keras.ops.convert_to_numpy(one).ravel() for one in model.optimizer.variables]
leave_result(np.concatenate([flatten(model), *states]).tobytes())
sk.shutdown()
