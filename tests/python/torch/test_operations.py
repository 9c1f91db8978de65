"""Each operation gives the right result on every rank, exactly where exactness is possible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import FINDS_MISMATCHES_S, Job
from sumpter.launch.attendant import free_port

CERTIFICATES = Path(__file__).parents[3] / "crates" / "coordinator" / "tests" / "certificates"


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 0), (4, 2)])
def test_operations_of_the_fronts(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    job = make_job(ranks, servers, partition_bytes="4KiB").start("operations.py")
    job.finish()
    assert len({job.result(rank) for rank in range(ranks)}) == 1


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 0), (4, 1)])
def test_exchanges_groups_and_process_sets(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    make_job(ranks, servers, partition_bytes="4KiB").start("exchanges.py").finish()


def test_checksums_change_no_result(make_job: Callable[..., Job]) -> None:
    make_job(3, 1, partition_bytes="4KiB", checksum=True).start("exchanges.py").finish()


def test_everything_can_be_encrypted(make_job: Callable[..., Job]) -> None:
    files = {f"tls_{name}": CERTIFICATES / f"{name}.pem" for name in ("cert", "key", "ca")}
    make_job(3, 1, partition_bytes="4KiB", **files).start("exchanges.py").finish()
    job = make_job(2, **files)
    job.make_pipe("refused")
    for rank in range(2):
        arguments = ("refused_setting.py", "tls_data", "has true", "has false")
        job.start_rank(rank, *arguments, SUMPTER_TLS_DATA=str(rank == 1).lower())
    job.wait_for("refused")
    assert list(job.folder.glob("result.*")), job.report("no rank was refused")


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 0), (3, 1), (4, 0)])
def test_ranks_with_less_data_than_others(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    make_job(ranks, servers, partition_bytes="4KiB").start("joins.py").finish()


@pytest.mark.parametrize("servers", [0, 1])
def test_ranks_leave_and_join_again_without_a_trace(
    make_job: Callable[..., Job], servers: int
) -> None:
    make_job(4, servers, repeated=True).start("cycles.py").finish()


def start_at_torchs_store(job: Job, script: str, **variables: str) -> Job:
    """As under torchrun: the ranks have torch's store, and rank 0 the coordinator."""
    port = str(free_port())
    for rank in range(job.ranks):
        places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **variables}
        job.start_rank(rank, script, SUMPTER_COORDINATOR="", **places)
    return job


def test_ranks_that_meet_at_torchs_store_leave_and_join_again(
    make_job: Callable[..., Job],
) -> None:
    start_at_torchs_store(make_job(4), "cycles.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 1), (4, 0)])
def test_a_job_that_failed_starts_anew(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(ranks, servers, repeated=True, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("starts_anew.py").finish()


def test_a_job_whose_coordinator_is_in_a_rank_starts_anew(make_job: Callable[..., Job]) -> None:
    job = make_job(3, peer_timeout_s=FINDS_MISMATCHES_S)
    start_at_torchs_store(job, "starts_anew.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (3, 1)])
def test_distributed_optimizer(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    make_job(ranks, servers).start("optimizers.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 0), (4, 2)])
def test_collectives_of_torch(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    make_job(ranks, servers, partition_bytes="4KiB").start("process_groups.py").finish()


def test_collectives_under_torchs_own_checks(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    for rank in range(2):
        job.start_rank(rank, "process_groups.py", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    job.finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 0)])
def test_groups_of_one_rank_need_no_round(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    make_job(ranks, servers).start("groups_of_one.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 0), (4, 2)])
def test_adasum(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    make_job(ranks, servers, partition_bytes="4KiB").start("adasum.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 0), (3, 1)])
def test_names_of_operations(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    make_job(ranks, servers, peer_timeout_s=FINDS_MISMATCHES_S).start("names.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (4, 0)])
def test_distributed_data_parallel(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    make_job(ranks, servers).start("data_parallel.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 1)])
def test_gradients_of_collectives(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    make_job(ranks, servers).start("gradients.py").finish()


def test_suspend_and_resume_with_a_rank_less(make_job: Callable[..., Job]) -> None:
    job = make_job(3)
    start_at_torchs_store(job, "suspends.py", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1").finish()


def test_the_state_on_servers_ends_with_its_job(make_job: Callable[..., Job]) -> None:
    start_at_torchs_store(make_job(2), "on_servers_again.py").finish()


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_one_rank_refuses_is_an_error_on_all_ranks(
    make_job: Callable[..., Job], ranks: int
) -> None:
    make_job(ranks).start("refused.py", "named").finish()


@pytest.mark.parametrize("ranks", [2, 3])
def test_parameters_and_state_that_one_rank_refuses_are_an_error_on_all_ranks(
    make_job: Callable[..., Job], ranks: int
) -> None:
    make_job(ranks, peer_timeout_s=FINDS_MISMATCHES_S).start("refused.py", "states").finish()


def test_calls_without_a_name_that_one_rank_refuses_are_found(make_job: Callable[..., Job]) -> None:
    make_job(3, peer_timeout_s=FINDS_MISMATCHES_S).start("refused.py", "unnamed").finish()
