"""Trains in mixed_float16; one rank's gradients overflow once, and all ranks skip that step."""

from __future__ import annotations

import keras
import numpy as np

import sumpter
import sumpter.keras as sk
from common import RANK, WORLD_SIZE, leave_result, raises

BATCH, STEPS, SCALE = 8, 5, 8.0

sk.init()
keras.config.set_dtype_policy("mixed_float16")
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
with raises(sumpter.UnsupportedError, "LossScaleOptimizer instead"):
    model.compile(sk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")

# Where a layer's gradients are not summed, ranks would skip different steps.
scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
with raises(sumpter.UnsupportedError, "without loss scaling"):
    sk.PartialDistributedOptimizer(scaled, "partial", local_layers=[model.layers[0]])
# Ranks whose metrics differ, as with validation data on some of them only.
own = {"loss": 1.0} if RANK == 0 else {"loss": 1.0, "val_loss": 2.0}
with raises(sumpter.MismatchError, "different metrics", "validation data"):
    sk.callbacks.MetricAverageCallback().on_epoch_end(0, own)

optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=SCALE)
optimizer = sk.DistributedOptimizer(optimizer)
on_jax = keras.backend.backend() == "jax"
model.compile(optimizer, "mse", jit_compile="auto" if on_jax else False)
assert model.optimizer is optimizer
data = np.random.default_rng(RANK)
x, y = data.normal(size=(BATCH * STEPS, 4)), data.normal(size=(BATCH * STEPS, 2))
if RANK == WORLD_SIZE - 1:
    x[2 * BATCH] = np.inf
start = np.concatenate([v.numpy().ravel() for v in model.trainable_variables])
callbacks = [sk.callbacks.BroadcastGlobalVariablesCallback(0), sk.callbacks.MetricAverageCallback()]
model.fit(x, y, BATCH, shuffle=False, verbose=0, callbacks=callbacks)
weights = np.concatenate([v.numpy().ravel() for v in model.trainable_variables])
assert np.isfinite(weights).all() and not np.array_equal(weights, start)
# Halved by the one step that was skipped; two have been taken since.
scale, steps = float(optimizer.dynamic_scale.numpy()), int(optimizer.step_counter.numpy())
assert (scale, steps) == (SCALE / 2, STEPS - 3), (scale, steps)
leave_result(weights.tobytes())
sk.shutdown()
