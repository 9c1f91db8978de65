"""What cannot be compressed is named, and NaNs do what their setting says, in real jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs import FINDS_MISMATCHES_S, Job


@pytest.mark.parametrize("servers", [0, 1])
def test_bad_input_is_named_and_the_job_goes_on(make_job: Callable[..., Job], servers: int) -> None:
    settings = {"compression_min_bytes": "1KiB", "deterministic": True}
    job = make_job(2, servers, peer_timeout_s=FINDS_MISMATCHES_S, **settings)
    job.start("bad_input.py").finish()


def test_a_count_of_none_in_the_setting_is_named_at_once(make_job: Callable[..., Job]) -> None:
    job = make_job(2, compression="topk:k=0")
    arguments = ("ConfigError", "SUMPTER_COMPRESSION", "topk", "k=0")
    job.start("join_only.py", *arguments).finish()
