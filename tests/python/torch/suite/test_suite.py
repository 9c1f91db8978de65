"""What scripts for Horovod may rely on, from its documentation, in one process for each rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import FINDS_MISMATCHES_S, Job

SCRIPT = Path(__file__).with_name("in_sequence.py")


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 1), (4, 0)])
def test_behaviours_in_sequence_with_errors_in_between(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(
        ranks, servers, repeated=True, partition_bytes="4KiB", peer_timeout_s=FINDS_MISMATCHES_S
    )
    job.start(str(SCRIPT)).finish()
