"""Normalization over all ranks, local layers, graphs of tf.compat.v1, and joining."""

from __future__ import annotations

import os

import keras
import numpy as np
import tensorflow as tf

import sumpter.keras as sk
import sumpter.tensorflow as st

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH = 12
keras.backend.set_floatx("float64")


def own(array: np.ndarray) -> np.ndarray:
    """Unequal shares: the first rank's is larger."""
    bounds = np.linspace(0, len(array), SIZE + 1).astype(int)
    bounds[1:-1] += 1
    return array[bounds[RANK] : bounds[RANK + 1]]


def make(kind: type[keras.layers.Layer]) -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv1D(3, 2), kind(), keras.layers.Flatten(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((4, 2)), *layers])


def check_normalization() -> None:
    """With shares of one batch, outputs, statistics and gradients are those of the whole."""
    data = np.random.default_rng(5)
    x, y = 5 + data.normal(size=(BATCH, 4, 2)), data.normal(size=(BATCH, 2))

    def run(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            output = model(x, training=True)
            loss = tf.reduce_sum((output - y) ** 2)
        return output, tape.gradient(loss, model.trainable_variables)

    whole, shared = make(keras.layers.BatchNormalization), make(st.SyncBatchNormalization)
    expected, gradients = run(whole, tf.constant(x), tf.constant(y))
    for call in (run, tf.function(run)):
        shared.set_weights(make(st.SyncBatchNormalization).get_weights())
        output, found = call(shared, tf.constant(own(x)), tf.constant(own(y)))
        np.testing.assert_allclose(output, own(expected.numpy()), rtol=1e-9)
        for one, other in zip(found, gradients, strict=True):
            total = st.allreduce(one, op=st.Sum).numpy()
            np.testing.assert_allclose(total, other, rtol=1e-9, atol=1e-9)
        for one, other in zip(shared.weights, whole.weights, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-9)
    np.testing.assert_allclose(shared(x).numpy(), whole(x).numpy(), rtol=1e-9)
    masked, plain = st.SyncBatchNormalization(), keras.layers.BatchNormalization()
    mask = data.random((BATCH, 4)) < 0.5
    found = masked(own(x), training=True, mask=own(mask))
    expected = plain(x, training=True, mask=mask)
    np.testing.assert_allclose(found, own(expected.numpy()), rtol=1e-5, atol=1e-6)
    copy = keras.layers.deserialize(keras.layers.serialize(masked))
    assert type(copy) is st.SyncBatchNormalization


def check_local_layers() -> None:
    first, second = keras.layers.Dense(2), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((2,)), first, second])
    st.broadcast_variables(model.variables)
    x = tf.constant(np.full((3, 2), RANK + 1.0))

    def gradients(tape: tf.GradientTape) -> list[np.ndarray]:
        with tape:
            loss = tf.reduce_sum(model(x))
        return [one.numpy() for one in tape.gradient(loss, model.trainable_variables)]

    alone = gradients(tf.GradientTape())
    mean = [st.allreduce(one).numpy() for one in alone]
    for scale in (True, False):
        options = {"local_layers": first, "scale_local_gradients": scale, "name": f"part.{scale}"}
        found = gradients(st.PartialDistributedGradientTape(tf.GradientTape(), **options))
        for place, one in enumerate(found):
            local = alone[place] / SIZE if scale else alone[place]
            np.testing.assert_allclose(one, local if place < 2 else mean[place], rtol=1e-12)
    before = [one.numpy() for one in model.trainable_variables]
    optimizer = sk.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), "partial", local_layers=[first]
    )
    optimizer.apply([tf.constant(one) for one in alone], model.trainable_variables)
    for place, (one, old) in enumerate(zip(model.trainable_variables, before, strict=True)):
        step = alone[place] / SIZE if place < 2 else mean[place]
        np.testing.assert_allclose(one.numpy(), old - step, rtol=1e-12)
    # TensorFlow's variables, as a tape that watches has them, are those of the layers.
    before = [one.numpy() for one in model.trainable_variables]
    watched = [one.value for one in model.trainable_variables]
    optimizer.apply([tf.constant(one) for one in alone], watched)
    for place, (one, old) in enumerate(zip(watched, before, strict=True)):
        step = alone[place] / SIZE if place < 2 else mean[place]
        np.testing.assert_allclose(one.numpy(), old - step, rtol=1e-12)
    for wrong in (["dense"], keras.layers.Dense(1)):
        try:
            st.PartialDistributedGradientTape(tf.GradientTape(), local_layers=wrong)
        except ValueError as error:
            assert "no layer" in str(error) or "build the model" in str(error)
        else:
            raise AssertionError("wrong layers were not refused")


def check_graphs() -> None:
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=np.full(3, RANK + 1.0))
        operation = st.broadcast_global_variables(SIZE - 1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(operation)
            assert session.run(variable).tolist() == [SIZE] * 3
        hooks = [st.BroadcastGlobalVariablesHook(0)]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            assert session.run(variable).tolist() == [1.0] * 3
    for module in (st, sk):
        try:
            module.broadcast_global_variables(0)
        except st.UnsupportedError as error:
            assert "broadcast_variables(" in str(error)
        else:
            raise AssertionError("there are no global variables here")


def check_numbers() -> None:
    last = st.add_process_set([SIZE - 1])
    number = last.process_set_id
    ask = tf.function(lambda: (st.size_op(number), st.process_set_included_op(number)))
    assert [one.numpy() for one in ask()] == [1, RANK == SIZE - 1]
    assert st.size_op().numpy() == SIZE and st.process_set_included_op().numpy() == 1
    before, _ = st.get_pushpull_speed()
    assert before > 0


def check_joining() -> None:
    """The last rank has one step more than the others."""
    steps = 3 + (RANK == SIZE - 1)
    step = tf.function(lambda x: st.allreduce(x, op=st.Sum, name="joined"))
    found = [step(tf.ones(2)).numpy().tolist() for _ in range(steps)]
    assert found[:3] == [[float(SIZE)] * 2] * 3 and found[3:] == [[1.0] * 2] * (steps - 3)
    assert st.join() == SIZE - 1
    assert step(tf.ones(2)).numpy().tolist() == [float(SIZE)] * 2


def check_values() -> None:
    """Keras' collectives on values."""
    assert sk.allreduce(RANK + 1.0) == (SIZE + 1) / 2
    assert sk.allreduce(np.array([RANK]), "ints", op=sk.Sum).tolist() == [SIZE * (SIZE - 1) // 2]
    total = SIZE * (SIZE + 1) / 2
    assert sk.push_pull(RANK + 1.0, "pushed") == total / SIZE
    assert sk.push_pull(RANK + 1.0, "pushed", False) == total
    assert sk.allgather(np.arange(RANK + 1)).tolist() == sum(
        (list(range(rank + 1)) for rank in range(SIZE)), []
    )
    assert sk.broadcast(tf.constant(RANK), SIZE - 1) == SIZE - 1
    rows = np.arange(2.0 * SIZE + 1)
    share = np.array_split(rows, SIZE)[RANK]
    assert sk.reducescatter(rows, op=sk.Sum).tolist() == (SIZE * share).tolist()


st.init()
check_normalization()
check_local_layers()
check_graphs()
check_numbers()
check_joining()
check_values()
st.shutdown()
