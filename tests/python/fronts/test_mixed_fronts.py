"""Ranks of several frameworks in one job, each framework in the environment that has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import needs
from jobs import FINDS_MISMATCHES_S, Job

# Their ranks, in order: NumPy's front has no allgather of arrays, and JAX's no objects.
MIXES = (
    ("torch", "jax", "numpy"),
    ("torch", "jax", "torch"),
    ("torch", "numpy", "torch"),
    # Each of these frameworks has an environment of its own.
    ("torch", "tensorflow", "numpy"),
    ("tensorflow", "torch", "tensorflow"),
    ("numpy", "mxnet", "torch"),
    ("mxnet", "torch", "mxnet"),
    ("tensorflow", "mxnet", "jax"),
)


@pytest.mark.parametrize("fronts", MIXES, ids="-".join)
def test_ranks_of_several_frameworks_meet_under_names(
    make_job: Callable[..., Job], fronts: tuple[str, ...]
) -> None:
    pythons = [needs.python_with(front) for front in fronts]
    job = make_job(len(fronts), 1, peer_timeout_s=FINDS_MISMATCHES_S)
    for rank, (front, python) in enumerate(zip(fronts, pythons, strict=True)):
        own = {"TEST_FRONT": front, "TEST_FRONTS": ",".join(fronts), "JAX_ENABLE_X64": "1"}
        job.start_rank(rank, "mixed_fronts.py", python=python, **own)
    job.finish()
    results = {job.result(rank) for rank in range(job.ranks)}
    assert len(results) == 1, "ranks have other bytes"
