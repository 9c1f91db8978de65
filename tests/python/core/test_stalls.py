"""A straggler is named in rank 0's log, in the status, and in the error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from jobs import HANG_S, TOKEN, Job
from sumpter import _native
from sumpter.cli import main

LINE = "on 'allreduce.late' since"


def until(true: Callable[[], bool], job: Job, what: str) -> None:
    """Waits for something that heartbeats bring; fails only if the job hangs."""
    deadline = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < deadline, job.report(f"never: {what}")
        time.sleep(0.2)


def test_a_late_rank_is_named_in_the_log_of_rank_0_and_in_the_status(
    make_job: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(2, 1, stall_warning_s=2).start("stalls.py", "late")
    access = {"coordinator": job.address, "token": TOKEN}

    def stall() -> dict[str, object] | None:
        jobs = json.loads(_native.status(access))["jobs"]
        return jobs[0]["stall"] if jobs else None

    until(lambda: stall() is not None, job, "a stall in the status")
    shown = stall()
    assert shown is not None
    assert shown["ranks"] == [1]
    assert shown["tensor"] == "allreduce.late"
    assert shown["round"] == 0
    assert "waiting for rank 1 (host " in str(shown["message"])
    options = ("--coordinator", job.address, "--token", TOKEN)
    with pytest.raises(SystemExit):
        main(["status", *options])
    table = " ".join(capsys.readouterr().out.split())
    assert "Now waiting for rank 1 (host " in table, table
    until(lambda: LINE in job.output(0), job, "the line in rank 0's log")
    assert "it has not begun this round; 1 other has" in job.output(0)
    assert LINE not in job.output(1), "only the lowest rank tells"
    (job.folder / "go").touch()
    # For rank 1; on a busy machine perhaps for what it has sent, meanwhile.
    until(lambda: "no longer waiting " in job.output(0), job, "the end of the wait")
    until(lambda: stall() is None, job, "a status without it")
    (job.folder / "end").touch()
    job.finish()


def test_a_wait_beyond_the_limit_is_an_error_that_names_rank_and_tensor(
    make_job: Callable[..., Job],
) -> None:
    make_job(2, stall_shutdown_s=10).start("stalls.py", "never").finish()
