"""The line that says why a job failed, from what its processes wrote; no processes."""

from __future__ import annotations

import pytest

from launched import run
from sumpter.launch.causes import End, Failed, last_error
from sumpter.launch.output import Label

LOST = "sumpter.PeerLostError: rank 1 has left the job, but 'g' waits for it"


def worker(rank: int, code: int, error: str = "") -> Failed:
    return Failed(Label("worker", rank), code, error)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "Traceback (most recent call last):\n  File x\n    f()\nValueError: bad\n",
            "ValueError: bad",
        ),
        (
            "[rank1]: Traceback (most recent call last):\n[rank1]:   File x\n"
            "[rank1]: ValueError: bad\nsome library says goodbye\n",
            "ValueError: bad",
        ),
        (
            "Traceback (most recent call last):\n  File x\nKeyError: 1\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n  File y\nValueError: bad\nmore\n",
            "ValueError: bad",
        ),
        ("terminate called\n\n", "terminate called"),
        ("", ""),
    ],
)
def test_the_last_exception_of_a_process_is_found(text: str, found: str) -> None:
    assert last_error(text.splitlines()) == found


def test_a_rank_that_lost_its_peer_is_not_the_root_cause() -> None:
    end = End(1, [worker(0, 1, LOST), worker(2, 1, LOST), worker(1, 1, "ValueError: bad")])
    assert end.root_cause == (
        "Root cause: rank 1: ValueError: bad (failed after it: ranks 0 and 2)"
    )


def test_without_another_cause_the_first_failure_is_it() -> None:
    end = End(1, [worker(2, 1, LOST), worker(0, 1, LOST)])
    assert end.root_cause == f"Root cause: rank 2: {LOST} (failed after it: rank 0)"


def test_a_signal_is_named_with_what_it_means() -> None:
    killed = End(137, [worker(0, 1, LOST), worker(1, 137, LOST)])
    assert killed.root_cause.startswith("Root cause: rank 1: killed by SIGKILL, perhaps for want")
    crashed = End(139, [worker(1, 139, "Fatal Python error")])
    assert crashed.root_cause == "Root cause: rank 1: was killed by SIGSEGV: Fatal Python error"


def test_a_server_can_be_the_root_cause() -> None:
    server = Failed(Label("server", 1), 2, "error: no")
    assert End(2, [server]).root_cause == "Root cause: server 1: error: no"
    silent = Failed(Label("server", 1), 2, "")
    assert End(2, [silent]).root_cause.endswith("ended with code 2 and wrote no error")


def test_a_job_that_fails_ends_with_the_root_cause_and_the_code_of_its_first_failure() -> None:
    script = (
        "import sys, numpy, sumpter\n"
        "sumpter.init()\n"
        "a = numpy.ones(1000, dtype=numpy.float32)\n"
        "sumpter.push_pull(a, name='g')\n"
        "if sumpter.rank() == 1: raise ValueError('bad sample 17')\n"
        "sumpter.push_pull(a, name='g')\n"
    )
    result = run("-n", "2", "-s", "1", worker=script, SUMPTER_PEER_TIMEOUT_S="4")
    assert result.returncode == 1
    # Rank 0 has had the time to say whom it lost.
    assert "[worker 0] sumpter.PeerLostError: rank 1 has left the job" in result.stderr
    assert result.stderr.splitlines()[-1] == (
        "[sumpter] Root cause: rank 1: ValueError: bad sample 17 (failed after it: rank 0)"
    )
    assert "Plan:" not in result.stdout
    assert "No tensor was summed" not in result.stdout
