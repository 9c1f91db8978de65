"""Elastic jobs with TensorFlow and Keras: workers die and join, and training goes on."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable

import pytest

import needs
from jobs import HANG_S, Job

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip(
        "tensorflow is not installed: `make tensorflow-check` has an environment for it",
        allow_module_level=True,
    )
if not needs.is_asked_for("tensorflow"):
    pytest.skip(needs.APART, allow_module_level=True)

import keras
import numpy as np
import tensorflow as tf

import sumpter.keras as sk
import sumpter.tensorflow as st

ON_JAX = {"KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1"}


@pytest.mark.parametrize(
    ("script", "redo", "variables"),
    [
        ("tensorflow_elastic.py", False, {}),
        ("tensorflow_elastic.py", True, {}),
        ("keras_elastic.py", False, {}),
        ("keras_elastic.py", False, ON_JAX),
    ],
    ids=["loop", "loop-redo", "fit", "fit-jax"],
)
def test_a_killed_worker_is_replaced(
    make_job: Callable[..., Job], script: str, redo: bool, variables: dict[str, str]
) -> None:
    job = make_job(3, 1, repeated=True, min_workers=2, redo=redo, start_timeout_s=HANG_S)
    job.make_pipe("alone")
    for rank in range(3):
        job.start_rank(rank, script, *["doomed"] * (rank == 0), **variables)
    assert job.exit_code(0) == -signal.SIGKILL, job.report("no worker was killed")
    job.wait_for("alone")
    job.start_rank(0, script, "newcomer", **variables)
    job.finish()
    assert job.result(0) == job.result(1) == job.result(2)


def test_variables_go_back_to_their_last_commit(alone: None) -> None:
    variable = tf.Variable([1.0, 2.0])
    state = st.elastic.TensorFlowState([variable], history=[])
    state.history.append(1)
    variable.assign([3.0, 4.0])
    state.commit()
    variable.assign([5.0, 6.0])
    state.history.append(2)
    state.restore()
    assert variable.numpy().tolist() == [3.0, 4.0] and state.history == [1]
    variable.assign([7.0, 8.0])
    state.sync()
    state.restore()
    assert variable.numpy().tolist() == [7.0, 8.0]


def test_callbacks_count_what_is_done_and_commit_it(alone: None) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    state = sk.elastic.KerasState(model, batch=3, epoch=1)
    commits: list[tuple[int, int]] = []
    state.commit = lambda: commits.append((state.epoch, state.batch))
    callbacks = [
        sk.elastic.UpdateBatchStateCallback(state),
        sk.elastic.UpdateEpochStateCallback(state),
        sk.elastic.CommitStateCallback(state, 2),
    ]
    model.fit(np.ones((5, 2)), np.ones(5), 1, 2, verbose=0, callbacks=callbacks)
    assert commits == [(1, 5), (1, 7), (2, 0), (2, 2), (2, 4), (3, 0)]


def test_states_that_cannot_be_are_refused(alone: None) -> None:
    with pytest.raises(ValueError, match="give the variables"):
        st.elastic.TensorFlowState()
    with pytest.raises(st.UnsupportedError, match="sessions"):
        st.elastic.TensorFlowState([tf.Variable(1.0)], session=object())
    with pytest.raises(ValueError, match="model.build"):
        st.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="compile it first"):
        sk.elastic.KerasState(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="batches_per_commit is 0"):
        sk.elastic.CommitStateCallback(st.elastic.ObjectState(), 0)


def test_errors_of_the_function_itself_are_raised(alone: None) -> None:
    @st.elastic.run
    def train(state: st.elastic.State) -> None:
        raise tf.errors.InvalidArgumentError(None, None, "of its own")

    with pytest.raises(tf.errors.InvalidArgumentError, match="of its own"):
        train(st.elastic.ObjectState(step=0))
