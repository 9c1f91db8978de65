"""Trains in a custom loop with workers that die and join, and compares with one process alone.

One worker is killed within a step's graph, before its gradients are with the others. With `redo`
off the others go back to the last commit, and the result is that of one process with the whole
batches; with it on they complete the step without it, and nothing is repeated. They go on until
another has taken its place. Leaves the final parameters.
"""

from __future__ import annotations

import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import sumpter.tensorflow as st
from common import announce, leave_result
from sumpter.tensorflow import elastic

STEPS, DEATH, REUNION, COMMIT_EVERY = 60, 23, 40, 5
BATCH, RANKS = 24, 3
REDO = os.environ["SUMPTER_REDO"] == "true"
# Sums of other groupings differ in the last bits; a lost or doubled step by 1e-3 and more.
TOLERANCE = 1e-9
keras.backend.set_floatx("float64")


def batch_of(step: int) -> tuple[np.ndarray, np.ndarray]:
    data = np.random.default_rng(step)
    return data.normal(size=(BATCH, 8)), data.normal(size=(BATCH, 4))


def make_training() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(4)]
    return keras.Sequential([keras.Input((8,)), *layers]), keras.optimizers.Adam(1e-2)


def flatten(model: keras.Model) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])


def train_alone() -> np.ndarray:
    model, optimizer = make_training()
    for step in range(STEPS):
        x, y = batch_of(step)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return flatten(model)


st.init()
doomed, is_newcomer = "doomed" in sys.argv, "newcomer" in sys.argv
model, optimizer = make_training()
if is_newcomer:
    for variable in model.trainable_variables:
        # What it trains with must come from the others.
        variable.assign(np.zeros(variable.shape))
state = elastic.TensorFlowKerasState(model, optimizer, step=0, sizes=[])
resets: list[int] = []
state.register_reset_callbacks([lambda: resets.append(st.size())])


def kill_this_process() -> np.int32:
    if doomed and state.step == DEATH:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.int32(0)


# Traced once: the program of three ranks serves two.
@tf.function
def take_step(x: tf.Tensor, y: tf.Tensor) -> None:
    with st.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
        tf.numpy_function(kill_this_process, [], tf.int32)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)


@elastic.run
def train(state: elastic.TensorFlowKerasState) -> str:
    assert not is_newcomer or state.step >= REUNION
    while state.step < STEPS:
        if state.step == REUNION and st.size() < RANKS:
            if st.rank() == 0:
                announce("alone")
            while True:  # until the commit is interrupted
                state.commit()
        x, y = (array[st.rank() :: st.size()] for array in batch_of(state.step))
        take_step(tf.constant(x), tf.constant(y))
        state.step += 1
        state.sizes.append(st.size())
        if state.step % COMMIT_EVERY == 0:
            state.commit()
    return "done"


assert train(state) == "done"
# Where the step was completed by two, they met as two at the next commit.
before = DEATH // COMMIT_EVERY * COMMIT_EVERY + COMMIT_EVERY * REDO
assert state.sizes == [3] * before + [2] * (REUNION - before) + [3] * 20, state.sizes
assert resets == ([] if is_newcomer else [2, 3]), resets
assert int(optimizer.iterations) == STEPS
error = float(np.abs(flatten(model) - train_alone()).max())
assert (error > TOLERANCE) == REDO, f"differs by {error}"
leave_result(flatten(model).tobytes())
