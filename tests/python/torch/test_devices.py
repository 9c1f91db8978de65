"""Jobs whose tensors are on a device: the one that tests play, and CUDA's where there is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from jobs import FINDS_MISMATCHES_S, Job

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"
)


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 0)])
def test_every_operation_on_a_device_of_slow_streams(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(ranks, servers, partition_bytes="4KiB", peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("on_fake.py").finish()


def test_every_operation_where_threads_wait_and_not_streams(make_job: Callable[..., Job]) -> None:
    job = make_job(2, partition_bytes="4KiB", peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("on_fake.py", "--blocking").finish()


def test_streams_wait_for_the_network_and_the_host_for_nothing(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(2, partition_bytes="4KiB", peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("followed.py").finish()


@pytest.mark.parametrize(("ranks", "servers"), [(1, 0), (2, 1), (3, 2)])
def test_variables_of_a_device_have_the_bytes_of_the_cpu(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(
        ranks,
        servers,
        partition_bytes="4KiB",
        deterministic=True,
        peer_timeout_s=FINDS_MISMATCHES_S,
    )
    job.start("on_fake_variables.py").finish()


def test_variables_where_threads_wait_and_not_streams(make_job: Callable[..., Job]) -> None:
    job = make_job(2, partition_bytes="4KiB", peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("on_fake_variables.py", "--blocking").finish()


@pytest.mark.parametrize("blocking", [False, True])
def test_streams_wait_for_the_values_of_buckets(
    make_job: Callable[..., Job], blocking: bool
) -> None:
    job = make_job(
        2,
        1,
        partition_bytes="4KiB",
        peer_timeout_s=FINDS_MISMATCHES_S,
        blocking_wait=blocking,
    )
    job.start("on_fake_hook.py", *["--blocking"] * blocking).finish()


@needs_cuda
def test_operations_on_one_gpu_and_its_streams(make_job: Callable[..., Job]) -> None:
    make_job(2).start("cuda_operations.py").finish()


@needs_cuda
def test_training_on_a_gpu_equals_training_on_the_cpu(make_job: Callable[..., Job]) -> None:
    make_job(2).start("cuda_training.py").finish()


@needs_cuda
def test_variables_of_a_gpu_have_the_bytes_of_the_cpu(make_job: Callable[..., Job]) -> None:
    make_job(2, 1, deterministic=True).start("cuda_variables.py").finish()


@needs_cuda
def test_ddp_on_a_gpu_with_the_optimizer_on_the_servers(make_job: Callable[..., Job]) -> None:
    make_job(2, 1).start("cuda_server_optimizer.py").finish()
