"""Racks with narrow uplinks: every collective, variables and deaths through the hubs of racks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from jobs import TOKEN, Job
from sumpter import _native
from sumpter.launch.links import describe_racks
from sumpter.launch.status import read_status

# Two racks with two machines each, of which one has two workers.
MACHINES = {0: "a1", 1: "a1", 2: "a2", 3: "b1", 4: "b1", 5: "b2"}
SUMMED_THERE = "racks a, b: each sums its machines' contributions before they leave it"


# A server on a machine of its own in each rack.
SERVERS = [
    {"SUMPTER_RACK": rack, "SUMPTER_TRUNK_GBPS": "1", "SUMPTER_BANDWIDTH_GBPS": "1"}
    for rack in "ab"
]


def start(job: Job, script: str, *arguments: str, trunk_gbps: float = 0.1) -> Job:
    for rank, machine in MACHINES.items():
        variables = {
            "SUMPTER_MACHINE": machine,
            "SUMPTER_RACK": machine[0],
            "SUMPTER_TRUNK_GBPS": str(trunk_gbps),
            "SUMPTER_BANDWIDTH_GBPS": "1",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
        job.start_rank(rank, script, *arguments, **variables)
    return job


@pytest.mark.parametrize(("servers", "deterministic"), [(0, True), (1, False)])
def test_all_collectives_give_what_they_give_without_racks(
    make_job: Callable[..., Job], servers: int, deterministic: bool
) -> None:
    settings = {"partition_bytes": "16KiB", "chunk_bytes": "4KiB", "deterministic": deterministic}
    job = make_job(len(MACHINES), servers, **settings)
    start(job, "racks.py").finish()
    assert SUMMED_THERE in job.output(0)
    assert SUMMED_THERE not in job.output(1)


@pytest.mark.parametrize(
    ("trunk_gbps", "hubs", "said"),
    [(0.1, True, SUMMED_THERE), (100, False, "racks a, b: their uplinks limit nothing")],
)
def test_wide_uplinks_need_no_hubs_and_the_status_says_what_is_so(
    make_job: Callable[..., Job], trunk_gbps: float, hubs: bool, said: str
) -> None:
    job = make_job(len(MACHINES))
    start(job, "racks.py", trunk_gbps=trunk_gbps).finish()
    assert said in job.output(0)
    text = _native.status({"coordinator": job.address, "token": TOKEN})
    workers = json.loads(text)["jobs"][0]["workers"]
    assert [worker["rack"] for worker in workers] == [name[0] for name in MACHINES.values()]
    assert {worker["trunk_gbps"] for worker in workers} == {trunk_gbps}
    (known,) = read_status(text)
    assert known.rack_hubs is not None and known.rack_hubs.sum is hubs
    assert said in describe_racks(known)
    passed_on = [worker["stats"]["counters"]["rack_bytes"] for worker in workers]
    assert all(passed_on) if hubs else not any(passed_on), passed_on


def test_servers_die_while_racks_sum(make_job: Callable[..., Job]) -> None:
    job = make_job(len(MACHINES), 2)
    pids = [str(job.server_pid(index)) for index in range(2)]
    start(job, "servers_die.py", "SIGKILL", *pids).finish()
    assert SUMMED_THERE in job.output(0)


def test_servers_sum_for_their_racks(make_job: Callable[..., Job]) -> None:
    settings = {"partition_bytes": "16KiB", "chunk_bytes": "4KiB"}
    job = make_job(len(MACHINES), 2, of_servers=SERVERS, **settings)
    start(job, "racks.py", trunk_gbps=1).finish()
    said = f"{SUMMED_THERE}, on workers and 2 servers"
    assert said in job.output(0)
    (known,) = read_status(_native.status({"coordinator": job.address, "token": TOKEN}))
    assert said in describe_racks(known)


def test_servers_die_that_sum_for_their_racks(make_job: Callable[..., Job]) -> None:
    job = make_job(len(MACHINES), 2, of_servers=SERVERS)
    pids = [str(job.server_pid(index)) for index in range(2)]
    start(job, "servers_die.py", "SIGKILL", *pids, trunk_gbps=1).finish()
    assert "2 servers" in job.output(0)


def test_the_coordinator_restarts_while_servers_sum_for_their_racks(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(len(MACHINES), 2, returns=True, of_servers=SERVERS)
    job.outlive_coordinators(lambda: start(job, "coordinator_returns.py", trunk_gbps=1))
    # The last coordinator knows the plan that the first one made.
    (known,) = read_status(_native.status({"coordinator": job.address, "token": TOKEN}))
    assert f"{SUMMED_THERE}, on workers and 2 servers" in describe_racks(known)
