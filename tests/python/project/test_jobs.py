"""Jobs of tests: one that is slow is waited for, one that hangs fails its test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

import jobs
from jobs import Job

# Ends once the pipe "end" beside it has been opened for writing.
WAITING = 'import os; open(os.environ["TEST_FOLDER"] + "/end").read()'


@pytest.fixture
def waiting(make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose rank waits, in a harness that has no patience."""
    for name in ("HANG_S", "WINDOW_S"):
        monkeypatch.setattr(jobs, name, 0.01)
    job = make_job(1)
    job.make_pipe("end")
    (job.folder / "waiting.py").write_text(WAITING)
    return job.start(str(job.folder / "waiting.py"))


def test_a_job_that_computes_is_waited_for(waiting: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def computing(pid: int | None) -> float:
        asked.append(pid)
        if len(asked) == 5:
            monkeypatch.setattr(jobs, "WINDOW_S", 200.0)
            (waiting.folder / "end").write_text("")
        return jobs.COMPUTES_S * len(asked)

    monkeypatch.setattr(jobs, "processor_time_s", computing)
    waiting.finish()
    assert len(asked) >= 5


def test_a_job_that_computes_nothing_hangs(waiting: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "processor_time_s", lambda pid: 1.0)
    with pytest.raises(AssertionError, match="rank 0 has not ended after 0 s\n--- rank0"):
        waiting.finish()


def test_a_job_that_computes_for_ever_is_given_up(
    waiting: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(1000))
    monkeypatch.setattr(jobs, "processor_time_s", lambda pid: jobs.COMPUTES_S * next(times))
    with pytest.raises(AssertionError, match="rank 0 has not ended"):
        waiting.finish()
    assert next(times) == 2 * jobs.MOST_WINDOWS


@pytest.mark.parametrize(
    ("before", "after", "goes_on"),
    [
        ([1.0, 5.0], [2.0, 6.0], True),
        ([1.0, 5.0], [1.5, 6.0], False),
        ([1.0, 5.0], [1.0, None], True),
        ([None, 5.0], [None, 5.0], False),
    ],
)
def test_a_job_goes_on_if_it_computes_or_a_process_ends(
    before: list[float | None], after: list[float | None], goes_on: bool
) -> None:
    assert jobs._goes_on(before, after) == goes_on


def test_processor_time_is_that_of_the_process() -> None:
    before = time.process_time()
    taken = jobs.processor_time_s(os.getpid())
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert taken is not None and before - 2 * tick <= taken <= time.process_time() + 2 * tick
    assert jobs.processor_time_s(2**22 + 1) is None, "no process has such a number"
