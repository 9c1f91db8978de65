"""Several event loops in a worker: the results of one, failover, and settings that cannot be."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from jobs import Job

# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 120


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (2, 1), (4, 0), (4, 1)])
def test_results_have_the_bytes_of_one_loop(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    digests: list[list[bytes]] = []
    for loops in (1, 2, 3):
        job = make_job(ranks, servers, io_threads=loops, deterministic=True)
        job.start("io_threads.py").finish()
        digests.append([job.result(rank) for rank in range(ranks)])
    assert digests[1] == digests[0]
    assert digests[2] == digests[0]


@pytest.mark.parametrize("loops", [2, 3])
def test_killed_servers_change_no_result(make_job: Callable[..., Job], loops: int) -> None:
    job = make_job(3, 2, io_threads=loops)
    pids = (str(job.server_pid(index)) for index in range(2))
    job.start("servers_die.py", "SIGKILL", *pids).finish()


def test_device_groups_lose_a_server_amid_rounds(make_job: Callable[..., Job]) -> None:
    job = make_job(5, 2, io_threads=2, partition_bytes="16KiB", chunk_bytes="4KiB")
    for rank in range(5):
        variables = {"SUMPTER_MACHINE": f"m{rank // 2}", "SUMPTER_DEVICE_GROUP": f"g{rank // 2}"}
        job.start_rank(rank, "shards.py", "10", str(job.server_pid(0)), **variables)
    job.finish()


def test_a_killed_worker_is_named_to_the_others(make_job: Callable[..., Job]) -> None:
    job = make_job(3, 1, io_threads=2).start("peer_dies.py", "name")
    for survivor in (0, 1):
        assert job.exit_code(survivor) == 0, job.report("a survivor failed")


@pytest.mark.parametrize("optimizer", ["in_workers", "on_servers"])
def test_a_killed_worker_of_an_elastic_job_is_replaced(
    make_job: Callable[..., Job], optimizer: str
) -> None:
    elastic = {"repeated": True, "min_workers": 2, "redo": False, "start_timeout_s": HANG_S}
    job = make_job(3, 1, io_threads=2, **elastic)
    job.make_pipe("alone")
    for rank in range(3):
        job.start_rank(rank, "elastic_training.py", optimizer, *["doomed"] * (rank == 0))
    assert job.exit_code(0) == -signal.SIGKILL, job.report("no worker was killed")
    job.wait_for("alone")
    job.start_rank(0, "elastic_training.py", optimizer, "newcomer")
    job.finish()
    assert job.result(0) == job.result(1) == job.result(2)


@pytest.mark.parametrize("optimizer", ["in_workers", "on_servers"])
def test_survivors_complete_an_interrupted_step(
    make_job: Callable[..., Job], optimizer: str
) -> None:
    job = make_job(3, 1, io_threads=3, repeated=True, min_workers=2, start_timeout_s=HANG_S)
    for rank in range(3):
        job.start_rank(rank, "elastic_redo.py", optimizer, *["doomed"] * (rank == 0))
    assert job.exit_code(0) == -signal.SIGKILL, job.report("no worker was killed")
    assert job.exit_code(1) == job.exit_code(2) == 0, job.report("the survivors failed")
    assert job.result(1) == job.result(2)


def test_other_numbers_of_loops_are_refused_with_both(make_job: Callable[..., Job]) -> None:
    job = make_job(2, io_threads=2, start_timeout_s=10)
    job.make_pipe("refused")
    job.start_rank(0, "join_only.py", "StartError", "rank 1")
    job.start_rank(1, "refused_setting.py", "io_threads", "has 2", "has 3", SUMPTER_IO_THREADS="3")
    job.wait_for("refused")
    assert job.exit_code(1) == 0, job.report("it was not refused")


@pytest.mark.parametrize("loops", ["0", "65", "two"])
def test_a_number_of_loops_that_cannot_be_is_named(
    make_job: Callable[..., Job], loops: str
) -> None:
    job = make_job(1, io_threads=loops)
    words = ("SUMPTER_IO_THREADS", loops, "from 1 to 64")
    job.start("join_only.py", "ConfigError", *words).finish()


def test_more_loops_than_cores_work_with_a_warning(make_job: Callable[..., Job]) -> None:
    loops = len(os.sched_getaffinity(0)) + 1
    job = make_job(2, io_threads=loops).start("io_threads.py", "float32")
    job.finish()
    warning = f"io_threads is {loops}, but this process may use {loops - 1} cores"
    assert warning in job.output(0), job.report("no warning")
