"""What goes wrong is said at once, on every rank it concerns, with what is needed to mend it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

import needs
from jobs import FINDS_MISMATCHES_S, Job

# Long enough for a busy machine to let every rank join that is to.
START_TIMEOUT_S = 10
# The default. A test of dozens of mismatches waits for as many heartbeats, and its ranks do hardly
# anything else, so that they get their turns on a busy machine as well.
FINDS_MANY_S = 4


def test_ranks_that_disagree_are_told_and_can_go_on(make_job: Callable[..., Job]) -> None:
    make_job(2, peer_timeout_s=FINDS_MISMATCHES_S).start("disagreements.py").finish()


@pytest.mark.parametrize(
    ("ranks", "part"),
    [
        (3, "names"),
        (3, "groups"),
        (3, "orders"),
        (4, "names"),
        (4, "groups"),
        (4, "orders"),
        (8, "orders"),
    ],
)
def test_every_rank_of_a_call_that_differs_gets_the_error(
    make_job: Callable[..., Job], ranks: int, part: str
) -> None:
    job = make_job(ranks, peer_timeout_s=FINDS_MANY_S)
    job.start("mismatches.py", part).finish()


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_one_rank_refuses_is_an_error_on_all_ranks(
    make_job: Callable[..., Job], ranks: int
) -> None:
    make_job(ranks).start("refused_arrays.py", "named").finish()


def test_calls_without_a_name_that_one_rank_refuses_are_found(make_job: Callable[..., Job]) -> None:
    make_job(3, peer_timeout_s=FINDS_MISMATCHES_S).start("refused_arrays.py", "unnamed").finish()


@pytest.mark.parametrize(
    ("how", "fabric"), [("name", "tcp"), ("ddp", "tcp"), ("name", "libfabric")]
)
def test_a_killed_worker_is_named_to_the_others(
    make_job: Callable[..., Job], how: str, fabric: str
) -> None:
    job = make_job(3, 1, **needs.fabric(fabric)).start("peer_dies.py", how)
    assert job.exit_code(2) == -signal.SIGKILL
    for survivor in (0, 1):
        assert job.exit_code(survivor) == 0, job.report("a survivor failed")


def test_a_run_outlives_its_coordinator(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1, returns=True)
    job.outlive_coordinators(lambda: job.start("coordinator_returns.py"))


@pytest.mark.parametrize("fabric", needs.FABRICS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_drained_servers_change_no_result(
    make_job: Callable[..., Job], number: signal.Signals, fabric: str
) -> None:
    settings = {**needs.fabric(fabric), "log": "info"}
    job = make_job(3, 2, **settings)
    pids = (str(job.server_pid(index)) for index in range(2))
    job.start("servers_die.py", number.name, *pids).finish()
    assert ("bytes are placed" in job.output(0)) == (fabric == "libfabric")
    how = [text in job.output(0) for text in ("was lost: connection closed", "is drained")]
    assert how == [number is signal.SIGKILL, number is signal.SIGINT], job.report("another end")


def test_a_missing_rank_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(3, start_timeout_s=START_TIMEOUT_S)
    for rank in (0, 2):
        job.start_rank(rank, "join_only.py", "StartError", "rank 1", job.address)
    assert [job.exit_code(rank) for rank in (0, 2)] == [0, 0], job.report("no such error")


def test_a_missing_server_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(1, start_timeout_s=START_TIMEOUT_S)
    job.start_rank(0, "join_only.py", "StartError", "server", SUMPTER_SERVERS="1")
    assert job.exit_code(0) == 0, job.report("no such error")


def test_a_coordinator_that_is_not_there_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(1, start_timeout_s=1)
    nowhere = "127.0.0.1:9"
    job.start_rank(0, "join_only.py", "StartError", nowhere, SUMPTER_COORDINATOR=nowhere)
    assert job.exit_code(0) == 0, job.report("no such error")


@pytest.mark.parametrize("token", ["another token, and a wrong one", ""])
def test_a_wrong_or_absent_token_is_refused(make_job: Callable[..., Job], token: str) -> None:
    job = make_job(2, start_timeout_s=START_TIMEOUT_S)
    job.start_rank(0, "join_only.py", "StartError", "rank 1")
    job.start_rank(1, "join_only.py", "AuthError", "token", SUMPTER_TOKEN=token)
    assert [job.exit_code(rank) for rank in (0, 1)] == [0, 0], job.report("no such error")


def test_a_setting_out_of_range_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(1, partition_bytes="7")
    job.start("join_only.py", "ConfigError", "SUMPTER_PARTITION_BYTES", "7").finish()


def test_checksums_are_for_all_ranks_or_none(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    job.make_pipe("refused")
    for rank in range(2):
        wish = str(rank == 1).lower()
        arguments = ("refused_setting.py", "checksum", "has true", "has false")
        job.start_rank(rank, *arguments, SUMPTER_CHECKSUM=wish)
    # The other one gets the error, too, if it is still there.
    job.wait_for("refused")
    assert list(job.folder.glob("result.*")), job.report("no rank was refused")


def test_a_wait_can_be_interrupted(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1)
    for rank in range(2):
        job.make_pipe(f"rank{rank}")
    job.start("waits_for_ever.py")
    for rank in range(2):
        job.wait_for(f"rank{rank}")
        job.signal(rank, signal.SIGINT)
    for rank in range(2):
        assert job.exit_code(rank) != 0
        assert "KeyboardInterrupt" in job.output(rank)


def test_a_process_groups_timeout_is_kept(make_job: Callable[..., Job]) -> None:
    make_job(2).start("timeouts.py").finish()
