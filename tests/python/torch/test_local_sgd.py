"""LocalSGD and DiLoCo."""

from __future__ import annotations

import signal
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


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 0)])
def test_local_sgd_averages(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    make_job(ranks, servers, partition_bytes="4KiB").start("local_sgd.py").finish()


@pytest.mark.parametrize("servers", [0, 1])
def test_one_rank_of_each_site_takes_part(make_job: Callable[..., Job], servers: int) -> None:
    make_job(4, servers, partition_bytes="4KiB").start("sites.py").finish()


def test_servers_that_die_change_no_outer_round(make_job: Callable[..., Job]) -> None:
    def results(die: bool) -> list[bytes]:
        job = make_job(3, 2, partition_bytes="16KiB")
        pids = [str(job.server_pid(index)) for index in range(2)] if die else []
        job.start("servers_die_in_rounds.py", *pids).finish()
        return [job.result(rank) for rank in range(3)]

    undisturbed, killed = results(die=False), results(die=True)
    assert undisturbed == killed, "not the same bytes"
    assert undisturbed[1] == undisturbed[2], "ranks have other parameters or other state"


@pytest.mark.parametrize(
    "kind", [["diloco"], ["diloco", "on_servers"], ["local-sgd"]], ids="-".join
)
def test_a_dead_worker_costs_its_own_steps_and_a_newcomer_goes_on_from_theta(
    make_job: Callable[..., Job], kind: list[str]
) -> None:
    job = make_job(3, 1, repeated=True, min_workers=2, start_timeout_s=120)
    job.make_pipe("alone")
    for rank in range(3):
        job.start_rank(rank, "elastic_local_sgd.py", *kind, *["doomed"] * (rank == 0))
    assert job.exit_code(0) == -signal.SIGKILL, job.report("no worker was killed")
    job.wait_for("alone")
    job.start_rank(0, "elastic_local_sgd.py", *kind, "newcomer")
    job.finish()
    assert job.result(0) == job.result(1) == job.result(2)
