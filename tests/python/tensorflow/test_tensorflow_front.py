"""sumpter.tensorflow and sumpter.keras: results, gradients, training and bad input."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import needs
from jobs import FINDS_MISMATCHES_S, HANG_S, Job

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip(
        "tensorflow is not installed: pip install 'sumpter[tensorflow]'", allow_module_level=True
    )
if not needs.is_asked_for("tensorflow"):
    pytest.skip(needs.APART, allow_module_level=True)

import keras
import tensorflow as tf

import sumpter.keras as sk
import sumpter.tensorflow as st
from sumpter import UnsupportedError
from sumpter._core import membership

# Four processes trace dozens of functions, on two cores.
PATIENCE_S = 4 * HANG_S


@pytest.mark.parametrize("ranks", [2, 4])
def test_results_gradients_and_errors(make_job: Callable[..., Job], ranks: int) -> None:
    # Deterministic: sums of floats are compared bit by bit.
    job = make_job(ranks, 1, deterministic=True, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("tensorflow_collectives.py").finish(PATIENCE_S)


@pytest.mark.parametrize("ranks", [2, 4])
def test_pieces_of_unequal_sizes(make_job: Callable[..., Job], ranks: int) -> None:
    job = make_job(ranks, 1, deterministic=True, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("tensorflow_pieces.py").finish(PATIENCE_S)


def test_normalization_local_layers_graphs_and_joining(make_job: Callable[..., Job]) -> None:
    make_job(2, 1).start("tensorflow_names.py").finish()


def test_ranks_that_make_other_calls_are_named(make_job: Callable[..., Job]) -> None:
    make_job(2, 1, peer_timeout_s=FINDS_MISMATCHES_S).start("tensorflow_order.py").finish()


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_one_rank_refuses_is_an_error_on_all_ranks(
    make_job: Callable[..., Job], ranks: int
) -> None:
    make_job(ranks).start("tensorflow_refused.py", "named").finish(PATIENCE_S)


def test_calls_without_a_name_that_one_rank_refuses_are_found(make_job: Callable[..., Job]) -> None:
    job = make_job(3, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("tensorflow_refused.py", "unnamed").finish(PATIENCE_S)


def test_what_xla_compiles_is_refused_by_name(make_job: Callable[..., Job]) -> None:
    make_job(2, 1).start("tensorflow_compiled.py").finish()


def test_ranks_train_as_one_process_does(make_job: Callable[..., Job]) -> None:
    found = []
    for job in (make_job(1), make_job(2, 1)):
        job.start("tensorflow_training.py").finish()
        results = [job.result(rank) for rank in range(job.ranks)]
        assert results == results[:1] * job.ranks, "ranks have other parameters"
        found.append(np.frombuffer(results[0]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-11)


def test_deterministic_sums_have_the_bytes_of_the_torch_front(make_job: Callable[..., Job]) -> None:
    found = set()
    for front in ("tensorflow", "torch"):
        job = make_job(2, 1, deterministic=True)
        for rank in range(job.ranks):
            job.start_rank(rank, "same_bytes.py", TEST_FRONT=front)
        job.finish()
        found |= {job.result(rank) for rank in range(job.ranks)}
    assert len(found) == 1


def test_a_rank_that_dies_inside_of_fit_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("keras_killed.py")
    assert job.exit_code(0) == 0, job.report("rank 0 got no error")


def test_digits_are_learned(unlaunched: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[3] / "examples" / "keras_digits.py"
    command = (sys.executable, "-m", "sumpter", "run", "-n", "2", "-s", "1", "--")
    done = subprocess.run(
        (*command, sys.executable, str(script)), capture_output=True, text=True, timeout=HANG_S
    )
    # The example fails below 97 %.
    assert done.returncode == 0 and "accuracy on 360" in done.stdout, done.stdout + done.stderr


def test_keras_fits_saves_and_loads(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1)
    job.start("keras_fit.py").finish()
    assert job.result(0) == job.result(1)


@pytest.mark.parametrize("others", ["built", "unbuilt"])
def test_all_ranks_go_on_from_what_one_has_loaded(
    make_job: Callable[..., Job], others: str
) -> None:
    job = make_job(3)
    job.start("keras_resume.py", others).finish()
    assert job.result(0) == job.result(1) == job.result(2)


@pytest.mark.parametrize(
    ("staircase", "decay"), [(True, [1, 1, 0.5, 0.5]), (False, [1, 0.5**0.5, 0.5, 0.5**1.5])]
)
def test_a_number_as_multiplier_is_exponential_decay(
    alone: None, staircase: bool, decay: list[float]
) -> None:
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.25), "mse")
    schedule = sk.callbacks.LearningRateScheduleCallback(
        0.8, 0.5, start_epoch=1, end_epoch=3, staircase=staircase
    )
    model.fit(np.ones((4, 2)), np.ones(4), 2, 4, verbose=0, callbacks=[schedule, Rates()])
    expected = [0.25] * 2 + [0.8 * one for one in decay] + [0.8 * decay[-1]] * 2
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_the_best_model_is_saved(alone: None, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    best = sk.callbacks.BestModelCheckpoint("loss")
    with pytest.raises(ValueError, match="no filepath"):
        model.fit(np.ones((4, 2)), np.ones(4), verbose=0, callbacks=[best])
    best.filepath = str(tmp_path / "best.keras")
    model.fit(np.ones((4, 2)), np.ones(4), verbose=0, callbacks=[best])
    weights = keras.models.load_model(best.filepath).get_weights()
    for one, other in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_arguments_of_the_originals_are_taken(alone: None) -> None:
    variable = tf.Variable([1.0, 2.0])
    made = st.DistributedOptimizer(
        keras.optimizers.SGD(0.5), None, True, num_groups=2, average_aggregated_gradients=True
    )
    made.apply([tf.constant([2.0, 4.0])], [variable])
    assert variable.numpy().tolist() == [0.0, 0.0]
    with pytest.raises(UnsupportedError, match="gradient_accumulation_steps"):
        st.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=2)
    st.broadcast_variables([variable], 0, scope="first.")
    assert st.broadcast(variable, 0, scope="first.", name="v", is_variable=False).shape == (2,)
    names = {tensor.name for tensor in membership.current().declared()}
    assert {"broadcast.first.variables", "broadcast.first.v"} <= names
    assert st.allgather(variable, "rows", True).numpy().tolist() == [0.0, 0.0]
    with pytest.raises(UnsupportedError, match="legacy_opts"):
        sk.load_model("none.keras", legacy_opts=True)


def test_a_backend_without_a_reduction_is_refused(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(UnsupportedError, match=r"on torch here: use sumpter\.torch"):
        sk.DistributedOptimizer(keras.optimizers.SGD())
    with pytest.raises(UnsupportedError, match="on TensorFlow, not torch"):
        st.SyncBatchNormalization()
    with pytest.raises(ValueError, match="fused"):
        st.SyncBatchNormalization(fused=True)
