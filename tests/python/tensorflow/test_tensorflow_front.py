"""sumpter.tensorflow and sumpter.keras: results, gradients, training and bad input."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import needs
from jobs import FINDS_MISMATCHES_S, HANG_S, TOKEN, Job
from launched import Started
from sumpter.launch.attendant import free_port

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip(
        "tensorflow is not installed: `make tensorflow-check` has an environment for it",
        allow_module_level=True,
    )
if not needs.is_asked_for("tensorflow"):
    pytest.skip(needs.APART, allow_module_level=True)

import keras
import tensorflow as tf

import sumpter.keras as sk
import sumpter.tensorflow as st
from sumpter import UnsupportedError, trace
from sumpter._core import membership

SUM = """\
import tensorflow as tf
import sumpter.tensorflow as st
st.init()
total = tf.function(lambda x: st.allreduce(x, op=st.Sum))(tf.constant([1.0 + st.rank()]))
print(st.rank(), st.size(), total.numpy().tolist())
st.shutdown()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_results_gradients_and_errors(make_job: Callable[..., Job], ranks: int) -> None:
    # Deterministic: sums of floats are compared bit by bit.
    job = make_job(ranks, 1, deterministic=True, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("tensorflow_collectives.py").finish()


@pytest.mark.parametrize("ranks", [2, 4])
def test_pieces_of_unequal_sizes(make_job: Callable[..., Job], ranks: int) -> None:
    job = make_job(ranks, 1, deterministic=True, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("tensorflow_pieces.py").finish()


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_tensors_of_a_device_are_reduced(make_job: Callable[..., Job], kind: str) -> None:
    if not tf.config.list_physical_devices(kind):
        pytest.skip(
            f"TensorFlow {tf.__version__} sees no {kind}, so collectives on its tensors are not "
            "tested: it needs one, and the package tensorflow[and-cuda]"
        )
    make_job(2, 1, deterministic=True).start("tensorflow_devices.py", kind).finish()


def test_normalization_local_layers_graphs_and_joining(make_job: Callable[..., Job]) -> None:
    make_job(2, 1).start("tensorflow_names.py").finish()


def test_ranks_that_make_other_calls_are_named(make_job: Callable[..., Job]) -> None:
    make_job(2, 1, peer_timeout_s=FINDS_MISMATCHES_S).start("tensorflow_order.py").finish()


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_one_rank_refuses_is_an_error_on_all_ranks(
    make_job: Callable[..., Job], ranks: int
) -> None:
    make_job(ranks).start("tensorflow_refused.py", "named").finish()


def test_calls_without_a_name_that_one_rank_refuses_are_found(make_job: Callable[..., Job]) -> None:
    job = make_job(3, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("tensorflow_refused.py", "unnamed").finish()


def test_what_xla_compiles_is_refused_by_name(make_job: Callable[..., Job]) -> None:
    make_job(2, 1).start("tensorflow_compiled.py").finish()


# A custom loop, and fit().
ways = pytest.mark.parametrize("script", ["tensorflow_training.py", "keras_training.py"])


def trained(job: Job, script: str, *killed: str) -> bytes:
    """The parameters after training, the same on all ranks."""
    job.start(script, *killed).finish()
    results = [job.result(rank) for rank in range(job.ranks)]
    assert results == results[:1] * job.ranks, "ranks have other parameters"
    return results[0]


@ways
def test_ranks_train_as_one_process_does(make_job: Callable[..., Job], script: str) -> None:
    alone = np.frombuffer(trained(make_job(1), script))
    for ranks in (2, 4):
        found = np.frombuffer(trained(make_job(ranks, 1), script))
        # In float64: sums of other groupings differ in the last bits, a lost step by 1e-3.
        np.testing.assert_allclose(found, alone, rtol=1e-9, atol=1e-11)


@ways
def test_killed_servers_change_no_byte(make_job: Callable[..., Job], script: str) -> None:
    undisturbed = trained(make_job(2, 2, deterministic=True), script)
    job = make_job(2, 2, deterministic=True)
    assert trained(job, script, *(str(job.server_pid(at)) for at in range(2))) == undisturbed


# The other of the two comparisons, with torch's, is among the tests of torch.
def test_deterministic_sums_have_the_bytes_of_the_numpy_front(make_job: Callable[..., Job]) -> None:
    found = set()
    for front in ("tensorflow", "numpy"):
        job = make_job(2, 1, deterministic=True)
        for rank in range(job.ranks):
            job.start_rank(rank, "same_bytes.py", TEST_FRONT=front)
        job.finish()
        found |= {job.result(rank) for rank in range(job.ranks)}
    assert len(found) == 1


@pytest.mark.parametrize("script", ["keras_killed.py", "tensorflow_killed.py"])
def test_a_rank_that_dies_inside_of_a_step_is_named(
    make_job: Callable[..., Job], script: str
) -> None:
    job = make_job(3, 1, peer_timeout_s=FINDS_MISMATCHES_S).start(script)
    assert job.exit_code(2) == -signal.SIGKILL, job.report("the last rank was not killed")
    assert [job.exit_code(rank) for rank in (0, 1)] == [0, 0], job.report("a survivor failed")


def test_a_running_job_is_traced(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1)
    job.make_pipe("busy")
    job.start("tensorflow_traced.py").wait_for("busy")
    path = job.folder / "run.pftrace"
    where = ("--coordinator", job.address, "--token", TOKEN, "-o", str(path))
    command = (sys.executable, "-m", "sumpter", "trace", "--steps", "4", *where)
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, job.report(done.stdout + done.stderr)
    (job.folder / "stop").touch()
    job.finish()
    read = trace.read(path)
    assert {one.process.partition(" ")[0] for one in read.slices} == {"rank", "server"}
    gradients = {one.tensor for one in read.slices if "gradients" in (one.tensor or "")}
    assert {name.rpartition(".")[2] for name in gradients} == {"0", "1"}, gradients


def of_mpirun(rank: int, port: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": f"prterun-test-{port}@1",
    }


def of_torchrun(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@pytest.mark.parametrize("variables_of", [of_mpirun, of_torchrun])
def test_other_launchers_start_a_job(variables_of: Callable[[int, int], dict[str, str]]) -> None:
    # Of another cluster: if anything read it, this job would wait for that.
    cluster = {"worker": ["one.invalid:2222", "two.invalid:2222", "three.invalid:2222"]}
    foreign = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 2}})
    shared, port = {"TF_CONFIG": foreign, "SUMPTER_TOKEN": TOKEN}, free_port()
    ranks = [Started("-c", SUM, **shared, **variables_of(rank, port)) for rank in range(2)]
    assert [started.output() for started in ranks] == ["0 2 [3.0]\n", "1 2 [3.0]\n"]


def test_digits_are_learned(unlaunched: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[3] / "examples" / "keras_digits.py"
    command = (sys.executable, "-m", "sumpter", "run", "-n", "2", "-s", "1", "--")
    done = subprocess.run(
        (*command, sys.executable, str(script)), capture_output=True, text=True, timeout=HANG_S
    )
    # The example fails below 97 %.
    assert done.returncode == 0 and "accuracy on 360" in done.stdout, done.stdout + done.stderr


def test_all_ranks_skip_the_step_in_which_gradients_of_one_overflow(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(2, 1).start("keras_mixed.py")
    job.finish()
    assert job.result(0) == job.result(1)


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


def test_the_learning_rate_is_by_default_the_optimizers(alone: None) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.25), "mse")
    # BytePS' order of arguments is another, so its scripts give names.
    schedule = sk.callbacks.LearningRateScheduleCallback(
        multiplier=lambda epoch: 0.5, start_epoch=1, initial_lr=None
    )
    found = []
    for _ in range(2):
        history = model.fit(np.ones((4, 2)), np.ones(4), 4, 2, verbose=0, callbacks=[schedule])
        found += history.history["lr"]
    # What training begins with later is a rate that was set here.
    assert found == [0.25, 0.125, 0.125, 0.125]
    with pytest.raises(ValueError, match="multiplier is None"):
        sk.callbacks.LearningRateScheduleCallback(0.25)


def test_an_optimizer_is_wrapped_as_it_is(alone: None) -> None:
    class Falling(keras.optimizers.schedules.LearningRateSchedule):
        """Keras cannot make it from a configuration."""

        def __call__(self, step: object) -> object:
            return 0.5 / (1.0 + keras.ops.cast(step, "float32"))

    weights = [keras.Variable(np.ones(3, np.float32), name=name) for name in ("kernel", "bias")]
    given = keras.optimizers.AdamW(Falling(), weight_decay=0.5)
    given.exclude_from_weight_decay(var_names=["bias"])
    optimizer = sk.DistributedOptimizer(given)
    optimizer.apply([keras.ops.zeros(3)] * 2, weights)
    np.testing.assert_allclose(weights[0].numpy(), 0.75)
    np.testing.assert_allclose(weights[1].numpy(), 1.0)
    assert isinstance(optimizer, keras.optimizers.AdamW) and int(optimizer.iterations) == 1


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
