"""sumpter.keras where Keras runs on JAX, without TensorFlow."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable

import numpy as np
import pytest

from jobs import FINDS_MISMATCHES_S, Job

if importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None:
    pytest.skip(
        "keras or jax is not installed: `make tensorflow-check` has an environment with both",
        allow_module_level=True,
    )


ON_JAX = {"KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1"}


def start(job: Job, script: str, *arguments: str) -> None:
    for rank in range(job.ranks):
        job.start_rank(rank, script, *arguments, **ON_JAX)


def trained(job: Job, *killed: str) -> bytes:
    """The weights after fit(), the same on all ranks."""
    start(job, "keras_training.py", *killed)
    job.finish()
    results = [job.result(rank) for rank in range(job.ranks)]
    assert results == results[:1] * job.ranks, "ranks have other weights"
    return results[0]


def test_two_and_four_ranks_fit_as_one_process_does(make_job: Callable[..., Job]) -> None:
    alone = np.frombuffer(trained(make_job(1)))
    for ranks in (2, 4):
        found = np.frombuffer(trained(make_job(ranks, 1)))
        # In float64: sums of other groupings differ in the last bits, a lost step by 1e-3.
        np.testing.assert_allclose(found, alone, rtol=1e-9, atol=1e-11)


def test_killed_servers_change_no_byte(make_job: Callable[..., Job]) -> None:
    undisturbed = trained(make_job(2, 2, deterministic=True))
    job = make_job(2, 2, deterministic=True)
    assert trained(job, *(str(job.server_pid(at)) for at in range(2))) == undisturbed


def test_callbacks_and_states_of_ranks_fit_as_those_of_one_process(
    make_job: Callable[..., Job],
) -> None:
    found = []
    for job in (make_job(1), make_job(2, 1)):
        start(job, "keras_jax.py")
        job.finish()
        results = [job.result(rank) for rank in range(job.ranks)]
        assert results == results[:1] * job.ranks, "ranks have other parameters"
        found.append(np.frombuffer(results[0]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-11)


def test_all_ranks_skip_the_step_in_which_gradients_of_one_overflow(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(2, 1)
    start(job, "keras_mixed.py")
    job.finish()
    assert job.result(0) == job.result(1)


def test_all_ranks_go_on_from_what_one_has_loaded(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    for rank in range(job.ranks):
        job.start_rank(rank, "keras_resume.py", "unbuilt", **ON_JAX)
    job.finish()
    assert job.result(0) == job.result(1)


def test_a_rank_that_dies_inside_of_fit_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(3, 1, peer_timeout_s=FINDS_MISMATCHES_S)
    start(job, "keras_killed.py")
    assert job.exit_code(2) == -signal.SIGKILL, job.report("the last rank was not killed")
    assert [job.exit_code(rank) for rank in (0, 1)] == [0, 0], job.report("a survivor failed")
