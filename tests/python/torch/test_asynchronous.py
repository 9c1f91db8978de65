"""Asynchronous training, and training with bounded staleness."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs import Job


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 0), (4, 2)])
def test_ranks_share_parameters_and_take_their_own_steps(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    make_job(ranks, servers, partition_bytes="4KiB").start("asynchronous.py").finish()


@pytest.mark.parametrize("staleness", ["2", "none"])
def test_no_step_is_lost_or_counts_twice_when_servers_die(
    make_job: Callable[..., Job], staleness: str
) -> None:
    job = make_job(3, 2, partition_bytes="64KiB")
    pids = [str(job.server_pid(index)) for index in range(2)]
    job.start("servers_die_asynchronous.py", staleness, *pids).finish()


@pytest.mark.parametrize("broadcast", ["state", "parameters"])
def test_scripts_of_byteps_train_asynchronously_by_its_variable(
    make_job: Callable[..., Job], broadcast: str
) -> None:
    job = make_job(3, 1)
    for rank in range(3):
        variables = {"BYTEPS_ENABLE_ASYNC": "1"}
        job.start_rank(rank, "byteps_script.py", "in workers", broadcast, **variables)
    job.finish()
