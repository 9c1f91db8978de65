"""sumpter.keras where Keras runs on JAX, without TensorFlow."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
import pytest

from jobs import FINDS_MISMATCHES_S, Job

if importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None:
    pytest.skip(
        "keras or jax is not installed: make tensorflow-check installs both",
        allow_module_level=True,
    )


ON_JAX = {"KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1"}


def start(job: Job, script: str) -> None:
    for rank in range(job.ranks):
        job.start_rank(rank, script, **ON_JAX)


def test_ranks_fit_as_one_process_does(make_job: Callable[..., Job]) -> None:
    found = []
    for job in (make_job(1), make_job(2, 1)):
        start(job, "keras_jax.py")
        job.finish()
        results = [job.result(rank) for rank in range(job.ranks)]
        assert results == results[:1] * job.ranks, "ranks have other parameters"
        found.append(np.frombuffer(results[0]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-11)


def test_all_ranks_go_on_from_what_one_has_loaded(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    for rank in range(job.ranks):
        job.start_rank(rank, "keras_resume.py", "unbuilt", **ON_JAX)
    job.finish()
    assert job.result(0) == job.result(1)


def test_a_rank_that_dies_inside_of_fit_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1, peer_timeout_s=FINDS_MISMATCHES_S)
    start(job, "keras_killed.py")
    assert job.exit_code(0) == 0, job.report("rank 0 got no error")
