"""The optimizer on the servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import Job


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_it_does_what_it_does_in_the_workers(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(ranks, servers, partition_bytes="4KiB", deterministic=True)
    job.start("on_servers.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 0), (3, 1)])
def test_ddp_has_the_same_by_a_communication_hook(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    make_job(ranks, servers, partition_bytes="16KiB").start("c10d_server_optimizer.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 0), (2, 1), (4, 2)])
def test_gradients_are_clipped_and_scaled_before_the_servers_apply_them(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(ranks, servers, partition_bytes="4KiB", deterministic=True)
    job.start("on_servers_deferred.py").finish()


@pytest.mark.parametrize("where", ["cpu", "device"])
@pytest.mark.parametrize("how", ["at once", "deferred"])
def test_servers_that_die_change_neither_parameters_nor_state(
    make_job: Callable[..., Job], how: str, where: str
) -> None:
    def results(die: bool) -> list[bytes]:
        job = make_job(3, 2, partition_bytes="16KiB")
        pids = [str(job.server_pid(index)) for index in range(2)] if die else []
        job.start("servers_die_updating.py", how, where if die else "cpu", *pids).finish()
        return [job.result(rank) for rank in range(3)]

    undisturbed, killed = results(die=False), results(die=True)
    assert len(set(undisturbed + killed)) == 1, "not the same bytes"


@pytest.mark.parametrize("rule", ["sgd", "adamw"])
def test_a_state_goes_on_with_another_number_of_servers(
    make_job: Callable[..., Job], tmp_path: Path, rule: str
) -> None:
    file = str(tmp_path / "state.pt")

    def results(servers: int, partition: str, *arguments: str) -> list[bytes]:
        job = make_job(3, servers, partition_bytes=partition)
        job.start("other_servers.py", rule, *arguments).finish()
        return [job.result(rank) for rank in range(3)]

    undisturbed = results(1, "16KiB", "8", "-", "-")
    results(1, "16KiB", "4", "-", file)
    assert results(3, "4KiB", "8", file, "-") == undisturbed


@pytest.mark.parametrize("broadcast", ["state", "parameters"])
def test_scripts_broadcast_what_is_on_the_servers_already(
    make_job: Callable[..., Job], broadcast: str
) -> None:
    make_job(2, 1).start("byteps_script.py", "on servers", broadcast).finish()


def test_a_variable_that_failed_stops_no_other(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1, partition_bytes="32KiB")
    job.start("variables_fail.py", str(job.server_pid(0))).finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 0)])
def test_what_would_give_a_wrong_result_is_refused(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    # Sums in the workers as on the servers, which add in the order of ranks.
    job = make_job(ranks, servers, partition_bytes="4KiB", deterministic=True)
    job.start("variables_refused.py").finish()


def test_losses_are_those_of_optimizers_in_the_workers(make_job: Callable[..., Job]) -> None:
    make_job(2, 1).start("loss_curves.py").finish()
