"""Compression from the fronts to the servers and back, in real jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs import FINDS_MISMATCHES_S, Job


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 1)])
def test_codecs_of_the_fronts(make_job: Callable[..., Job], ranks: int, servers: int) -> None:
    job = make_job(ranks, servers, partition_bytes="16KiB", peer_timeout_s=FINDS_MISMATCHES_S)
    job.start("compression.py").finish()
    assert len({job.result(rank) for rank in range(ranks)}) == 1


def test_every_machine_sends_its_sum_once(make_job: Callable[..., Job]) -> None:
    job = make_job(3, 1, partition_bytes="16KiB", peer_timeout_s=FINDS_MISMATCHES_S)
    for rank in range(3):
        job.start_rank(rank, "compression.py", SUMPTER_MACHINE="ab"[rank // 2])
    job.finish()
    assert len({job.result(rank) for rank in range(3)}) == 1


def test_several_event_loops(make_job: Callable[..., Job]) -> None:
    settings = {"partition_bytes": "16KiB", "io_threads": 2}
    job = make_job(2, 1, peer_timeout_s=FINDS_MISMATCHES_S, **settings)
    job.start("compression.py").finish()


@pytest.mark.parametrize("ranks", [2, 3])
def test_optimizers_train_with_codecs(make_job: Callable[..., Job], ranks: int) -> None:
    make_job(ranks, compression_min_bytes=1024).start("compressed_training.py").finish()


def test_a_rank_alone_trains_by_exact_gradients(make_job: Callable[..., Job]) -> None:
    make_job(1, compression_min_bytes=1024).start("compressed_alone.py").finish()


def test_the_setting_is_the_fronts_default(make_job: Callable[..., Job]) -> None:
    settings = {"compression": "int8", "compression_min_bytes": "4KiB"}
    make_job(2, **settings).start("compressed_by_setting.py").finish()


@pytest.mark.parametrize("codec", ["int8", "bf16"])
def test_the_backend_of_torch_compresses_by_setting_options_and_hook(
    make_job: Callable[..., Job], codec: str
) -> None:
    settings = {"compression": codec, "compression_min_bytes": "4KiB"}
    make_job(2, **settings).start("c10d_compression.py", codec).finish()


def test_chunks_that_cut_a_block_are_refused(make_job: Callable[..., Job]) -> None:
    job = make_job(2, chunk_bytes="6KiB", partition_bytes="16KiB")
    job.start("compression_chunks.py").finish()


@pytest.mark.parametrize(
    ("ranks", "servers", "settings"),
    [(2, 0, {}), (3, 1, {"deterministic": True}), (2, 1, {"io_threads": 2})],
)
def test_a_job_that_loads_what_codecs_keep_goes_on_to_the_same_bytes(
    make_job: Callable[..., Job], ranks: int, servers: int, settings: dict[str, object]
) -> None:
    settings = {"partition_bytes": "16KiB", "compression_min_bytes": "4KiB", **settings}
    whole = make_job(ranks, servers, **settings)
    whole.start("compression_resumed.py", "through").finish()
    first = make_job(ranks, servers, **settings)
    saved = str(first.folder / "saved")
    first.start("compression_resumed.py", "begin", saved).finish()
    second = make_job(ranks, servers, **settings)
    second.start("compression_resumed.py", "resume", saved).finish()
    for rank in range(ranks):
        assert second.result(rank) == whole.result(rank), f"rank {rank}"
