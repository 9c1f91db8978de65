"""sumpter.tensorflow: reductions and broadcasts, their gradients, training and bad input."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
import pytest

from jobs import FINDS_MISMATCHES_S, Job

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip(
        "tensorflow is not installed: pip install 'sumpter[tensorflow]'", allow_module_level=True
    )


@pytest.mark.parametrize("ranks", [2])
def test_results_gradients_and_errors(make_job: Callable[..., Job], ranks: int) -> None:
    # Deterministic: sums of floats are compared bit by bit.
    job = make_job(ranks, 1, deterministic=True, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("tensorflow_collectives.py").finish()


def test_ranks_train_as_one_process_does(make_job: Callable[..., Job]) -> None:
    found = []
    for job in (make_job(1), make_job(2, 1)):
        job.start("tensorflow_training.py").finish()
        results = [job.result(rank) for rank in range(job.ranks)]
        assert results == results[:1] * job.ranks, "ranks have other parameters"
        found.append(np.frombuffer(results[0]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-11)
