"""LocalSGD and DiLoCo."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs import FINDS_MISMATCHES_S, Job


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (4, 2)])
def test_diloco_is_its_algorithm(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    job = make_job(ranks, servers, partition_bytes="4KiB", peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("diloco.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (3, 1)])
def test_diloco_goes_on_from_its_state(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(ranks, servers, repeated=True, deterministic=True, partition_bytes="4KiB")
    job.start("diloco_again.py").finish()
