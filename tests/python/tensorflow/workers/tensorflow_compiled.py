"""Steps that XLA would compile are refused by name on all ranks, and the job goes on."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import sumpter.keras as sk
import sumpter.tensorflow as st


def expect_refusal(call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except Exception as error:
        missing = [part for part in (*parts, "jit_compile") if part not in str(error)]
        assert not missing, f"{missing} not in {type(error)}: {error}"
    else:
        raise AssertionError("what XLA compiles was not refused")


@tf.function
def plain(x: tf.Tensor) -> tf.Tensor:
    return st.allreduce(x, op=st.Sum, name="plain")


@tf.function(jit_compile=True)
def compiled(x: tf.Tensor) -> tf.Tensor:
    return st.allreduce(x, name="gamma") + 1.0


@tf.function(jit_compile=True)
def loop(x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(3):
        x = plain(x)
    return x


@tf.function(jit_compile=True)
def tape_step(x: tf.Tensor) -> tf.Tensor:
    with st.DistributedGradientTape(tf.GradientTape()) as tape:
        tape.watch(x)
        loss = tf.reduce_sum(x * x)
    return tape.gradient(loss, x)


st.init()
ones, total = tf.ones(3), [float(st.size())] * 3
expect_refusal(lambda: compiled(ones), "UnsupportedError", "compiled()", "tensor gamma")
# Again: nothing of the refused trace is kept.
expect_refusal(lambda: compiled(ones), "UnsupportedError", "compiled()", "tensor gamma")
expect_refusal(lambda: tf.function(lambda x: compiled(x))(ones), "compiled()", "tensor gamma")
expect_refusal(lambda: loop(ones), "loop()", "tensor plain")
expect_refusal(lambda: tape_step(ones), "tape_step()", "tensor gradients")
assert plain(ones).numpy().tolist() == total
# Traced already, so that only XLA can say it, by the name of the operation.
expect_refusal(lambda: loop(ones), "allreduce.needs_jit_compile_False")
assert plain(ones).numpy().tolist() == total

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
for choice in (True, "auto"):
    model.compile(sk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=choice)

    def fit() -> None:
        model.fit(np.ones((16, 4)), np.ones((16, 3)), 8, 1, verbose=0)

    # Keras' default compiles where there is a GPU.
    if model.jit_compile:
        expect_refusal(fit, "one_step_on_data()", "model.compile()")
    else:
        fit()
assert plain(ones).numpy().tolist() == total
st.shutdown()
