"""The torch.distributed backend: every collective, every kind of group, and what is built on it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from jobs import FINDS_MISMATCHES_S, Job
from sumpter._core.callbacks import CallbackQueue
from sumpter._errors import MismatchError
from sumpter.launch.attendant import free_port
from sumpter.torch.c10d.delegate import DelegatedWork, Loan
from sumpter.torch.c10d.work import SumpterWork

# Smaller than some tensors, so that they are cut.
PARTITION = "4KiB"


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 0), (3, 1), (4, 0)])
def test_every_collective_gives_what_is_computed_locally(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    make_job(ranks, servers, partition_bytes=PARTITION).start("c10d_collectives.py").finish()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_transfers_objects_and_works(make_job: Callable[..., Job], ranks: int) -> None:
    make_job(ranks).start("c10d_works.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 0), (3, 1)])
def test_calls_that_come_again(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    job = make_job(ranks, servers, partition_bytes=PARTITION, peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("c10d_repeated.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 0), (4, 1)])
def test_sub_groups_and_meshes(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    make_job(ranks, servers).start("c10d_groups.py").finish()


def test_every_rendezvous_again_and_again(make_job: Callable[..., Job]) -> None:
    ports = ",".join(str(free_port()) for _ in range(2))
    make_job(3).start("c10d_joining.py", "sumpter", ports).finish()


@pytest.mark.parametrize("ranks", [2, 3])
def test_different_calls_are_an_error_on_all_ranks(
    make_job: Callable[..., Job], ranks: int
) -> None:
    make_job(ranks, peer_timeout_s=FINDS_MISMATCHES_S).start("c10d_mismatches.py").finish()


class _Refused:
    """A round in which ranks made different calls."""

    def poll(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        raise MismatchError("rank 1 called gather")

    def on_done(self, callback: Callable[[], object]) -> None:
        raise AssertionError("nothing waits for it")


def test_a_delegated_call_that_differs_is_completed_before_its_turn() -> None:
    group = SimpleNamespace(timeout_s=1.0)
    agreement = SumpterWork().begin(group, "gather", [], [_Refused()])
    queue = CallbackQueue()
    work = DelegatedWork("gather", Future(), [], Loan(), queue, agreement)
    assert work.is_completed() and not work.is_success()
    assert isinstance(work.exception(), MismatchError)


def test_a_call_that_no_other_rank_makes_ends_with_its_name(make_job: Callable[..., Job]) -> None:
    make_job(2).start("c10d_absences.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (4, 1)])
def test_what_pytorch_builds_equals_gloo(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(ranks, servers, partition_bytes=PARTITION)
    ways = "ddp,uneven,fsdp2,hsdp,tensor_parallel,pipeline" if ranks == 4 else "all"
    job.start("c10d_training.py", "sumpter", ways).finish()
    if ranks == 2:
        # Two numbers add up to the same in either order.
        assert ": close" not in job.output(0)


def test_sharded_training_under_torchs_own_checks(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    for rank in range(2):
        job.start_rank(
            rank, "c10d_training.py", "sumpter", "fsdp2", TORCH_DISTRIBUTED_DEBUG="DETAIL"
        )
    job.finish()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_callbacks_begin_collectives_and_wait_for_them(
    make_job: Callable[..., Job], ranks: int
) -> None:
    make_job(ranks).start("c10d_callbacks.py").finish()
