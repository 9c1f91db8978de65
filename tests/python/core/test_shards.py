"""Device groups: ranks that hold shards of their group's sums contribute and receive only these."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs import Job

# Machines and device groups: two groups of different sizes on one machine, a group with a rank that
# holds no shards, and a rank in no group.
PLACES = {
    0: ("m1", "m1/0", True),
    1: ("m1", "m1/0", True),
    2: ("m1", "m1/1", True),
    3: ("m2", "m2/0", False),
    4: ("m2", "m2/0", True),
    5: ("m2", "m2/0", True),
    6: ("m3", "", True),
}


def start(job: Job, *arguments: str, script: str = "shards.py") -> Job:
    for rank, (machine, group, holds) in PLACES.items():
        grouped = {"SUMPTER_DEVICE_GROUP": group, "SUMPTER_DEVICE_SHARDS": str(holds).lower()}
        alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        variables = {"SUMPTER_MACHINE": machine, **alone, **(grouped if group else {})}
        job.start_rank(rank, script, *arguments, **variables)
    return job


@pytest.mark.parametrize(("servers", "deterministic"), [(0, True), (1, False)])
def test_shards_give_what_a_plain_sum_gives(
    make_job: Callable[..., Job], servers: int, deterministic: bool
) -> None:
    settings = {"partition_bytes": "16KiB", "chunk_bytes": "4KiB", "deterministic": deterministic}
    start(make_job(len(PLACES), servers, **settings), "4").finish()


def test_a_server_dies_amid_rounds_of_shards(make_job: Callable[..., Job]) -> None:
    job = make_job(len(PLACES), 2, partition_bytes="16KiB", chunk_bytes="4KiB")
    start(job, "20", str(job.server_pid(0))).finish()
