"""Steps that reduce two gradients through a front, inside of what it compiles where it does.

`TEST_FRONT` says which front, and the first argument how many steps; without one there are steps
until the test has seen enough.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

FRONT = os.environ["TEST_FRONT"]
front = importlib.import_module(f"sumpter.{FRONT}")
# What a step takes besides its rounds.
COMPUTES_S = 0.004
# How many steps there are before the test looks.
BUSY = 8


def stepper() -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """The averages of arrays over all ranks, in one call."""
    if FRONT == "jax":
        import jax

        return jax.jit(lambda arrays: front.all_reduce(arrays, name="gradients"))
    if FRONT == "tensorflow":
        import tensorflow as tf

        call = tf.function(lambda arrays: front.grouped_allreduce(arrays, name="gradients"))
        return lambda arrays: call([tf.constant(array) for array in arrays])
    import mxnet as mx

    return lambda arrays: [
        reduced.asnumpy()
        for reduced in front.grouped_allreduce([mx.nd.array(a) for a in arrays], name="gradients")
    ]


front.init()
step = stepper()
gradients = [np.full(count, 1.0 + front.rank(), np.float32) for count in (1000, 30)]
average = 0.5 + front.size() / 2
steps = int(sys.argv[1]) if len(sys.argv) > 1 else None
done, stop = 0, False
while not stop:
    time.sleep(COMPUTES_S)
    for reduced, given in zip(step(gradients), gradients, strict=True):
        np.testing.assert_array_equal(reduced, np.full_like(given, average))
    done += 1
    if steps is not None:
        stop = done == steps
        continue
    folder = Path(os.environ["TEST_FOLDER"])
    # All ranks end after the same step.
    wish = np.array([(folder / "stop").exists(), 0.0], np.float32)
    stop = bool(np.asarray(step([wish, wish])[0])[0] == 1)
    if done == BUSY and front.rank() == 0:
        with (folder / "busy").open("wb"):
            pass
front.shutdown()
# Ranks of tests have it from the start.
assert steps is None or "torch" not in sys.modules, "PyTorch was imported for this front"
