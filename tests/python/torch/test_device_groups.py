"""Jobs whose ranks reduce on devices of their machine: the tests' device, and NCCL where it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import fake_device
from fake_device import on_fake
from fake_group import FakeBackend
from jobs import FINDS_MISMATCHES_S, Job
from sumpter.torch.device_groups import split

SUMPTER = [sys.executable, "-m", "sumpter"]


def start(
    job: Job,
    script_name: str,
    members: int,
    holds: str = "",
    *arguments: str,
    script: Sequence[str] = (),
) -> Job:
    """Starts a rank's script with groups of so many ranks, two to a machine.

    Its arguments are the size of a group and who holds shards, unless they are `script`.
    """
    holders = holds or ",".join("1" * members)
    given = script or (str(members), holders, *arguments)
    for rank in range(job.ranks):
        group, place = divmod(rank, members)
        variables = {
            "SUMPTER_MACHINE": f"m{group // 2}",
            "SUMPTER_DEVICE_GROUP": f"m{group // 2}/{group}",
            "SUMPTER_DEVICE_SHARDS": "true" if holders.split(",")[place] == "1" else "false",
            "LOCAL_RANK": str(rank % (2 * members)),
            "LOCAL_WORLD_SIZE": str(min(2 * members, job.ranks)),
        }
        job.start_rank(rank, script_name, *given, **variables)
    return job


def test_parts_are_scattered_equally_but_for_the_rest() -> None:
    assert split([(0, 8), (8, 8)]) == (8, [])
    assert split([(0, 8), (8, 8), (16, 12)]) == (8, [(2, 24, 4)])
    # One has all, or some have none.
    assert split([(0, 0), (0, 20)]) == (0, [(1, 0, 20)])
    assert split([(0, 20), (20, 0)]) == (0, [(0, 0, 20)])
    assert split([(0, 0), (0, 8), (8, 12)]) == (0, [(1, 0, 8), (2, 8, 12)])


def test_the_tests_device_finds_collectives_in_different_orders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fake_device, "errors", [])
    device, store = fake_device.install(), dist.HashStore()
    ranks = [FakeBackend(store, rank, 2) for rank in range(2)]
    one, two = on_fake(torch.ones(4)), on_fake(torch.ones(8))
    broadcast = dist.BroadcastOptions()
    work = [ranks[0].broadcast([one], broadcast), ranks[1].broadcast([two], broadcast)]
    for each in work:
        assert each is not None
        each.wait()
    device.current().mark().hold()
    with pytest.raises(RuntimeError, match=r"device \d is at #0 broadcast .* but \d at #0 broad"):
        device.current().mark().synchronize()


@pytest.mark.parametrize(
    ("ranks", "members", "holds", "servers"),
    [(4, 2, "", 0), (3, 3, "", 1), (4, 4, "0,0,1,1", 1), (4, 2, "0,1", 0)],
)
def test_devices_of_a_group_reduce_what_all_ranks_reduce(
    make_job: Callable[..., Job], ranks: int, members: int, holds: str, servers: int
) -> None:
    job = make_job(ranks, servers, partition_bytes="16KiB", peer_timeout_s=FINDS_MISMATCHES_S)
    start(job, "on_fake_groups.py", members, holds).finish()


def test_a_server_dies_amid_rounds_of_a_group(make_job: Callable[..., Job]) -> None:
    job = make_job(4, 2, partition_bytes="16KiB", chunk_bytes="4KiB")
    start(job, "on_fake_server_dies.py", 2, "", str(job.server_pid(0))).finish()


def test_a_rank_of_a_group_that_dies_is_an_error_of_all(make_job: Callable[..., Job]) -> None:
    job = start(make_job(4, peer_timeout_s=FINDS_MISMATCHES_S), "on_fake_rank_dies.py", 2)
    codes = [job.exit_code(rank) for rank in range(4)]
    assert codes == [0, 0, 0, -signal.SIGKILL], job.report(f"exit codes {codes}")


def test_a_rank_that_never_begins_is_named_though_the_others_hold_nothing(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(2, stall_shutdown_s=5)
    job.make_pipe("over")
    start(job, "on_fake_stalls.py", 2).finish()


# A machine of four GPUs below two switches, whose links are so much faster than those of the
# switches that no part is better copied as it is.
MACHINE = """
[[machine]]
name = "m"
role = "gpu"
count = 1
nics = [{{ name = "nic", gbps = 100, device = "{nic}" }}]
devices = [
    {{ name = "cpu", kind = "cpu" }},
    {{ name = "switch-0", kind = "switch", parent = "cpu", gbps = 105 }},
    {{ name = "switch-1", kind = "switch", parent = "cpu", gbps = 105 }},
    {{ name = "gpu-0", kind = "gpu", parent = "switch-0", gbps = 1000 }},
    {{ name = "gpu-1", kind = "gpu", parent = "switch-0", gbps = 1000 }},
    {{ name = "gpu-2", kind = "gpu", parent = "switch-1", gbps = 1000 }},
    {{ name = "gpu-3", kind = "gpu", parent = "switch-1", gbps = 1000 }},
]
"""
NVLINK = """nvlinks = [{ devices = ["gpu-0", "gpu-1", "gpu-2", "gpu-3"], gbps = 2000 }]
"""


def planned(folder: Path, nic: str, nvlink: bool) -> dict[str, Any]:
    """What `sumpter plan` says of a reduction of 1 MiB inside the machine."""
    file = folder / "machine.toml"
    file.write_text(MACHINE.format(nic=nic) + (NVLINK if nvlink else ""))
    command = [*SUMPTER, "plan", "--machines", str(file), "--bytes", "1MiB", "--json"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    (inside,) = json.loads(result.stdout)["inside"]
    report: dict[str, Any] = inside["report"]
    return report


@pytest.mark.parametrize(
    ("rule", "nic", "nvlink", "members", "holds"),
    [
        ("cpu-assisted", "cpu", False, 2, "1,1"),
        ("cpu-assisted", "switch-0", False, 2, "1,1"),
        ("reduce-scatter", "cpu", True, 4, "1,1,1,1"),
        ("reduce-broadcast", "switch-0", True, 4, "0,0,1,1"),
    ],
)
def test_links_inside_the_machine_carry_what_is_planned(
    make_job: Callable[..., Job],
    tmp_path: Path,
    rule: str,
    nic: str,
    nvlink: bool,
    members: int,
    holds: str,
) -> None:
    report = planned(tmp_path, nic, nvlink)
    assert (report["reduction"], report["direct"]) == (rule, 0)
    job = make_job(4, partition_bytes="16KiB")
    start(job, "on_fake_bytes.py", members, holds, script=["0,0,1,1", "nvlink" * nvlink]).finish()
    carried: Counter[tuple[str, str, str]] = Counter()
    for rank in range(4):
        for lower, upper, direction, size in json.loads(job.result(rank)):
            carried[lower, upper, direction] += size
    expected = {(each["device"], each["parent"]): each["bytes"] for each in report["links"]}
    links = {(lower, upper) for lower, upper, _ in carried}
    assert links <= set(expected)
    for link, size in expected.items():
        both = [carried[(*link, direction)] for direction in ("up", "down")]
        if (rule, link[1]) == ("reduce-broadcast", "NVLink"):
            # A chain's first GPU receives nothing and its last sends nothing; those between carry
            # what is planned.
            assert all(each <= size for each in both), (link, both, size)
        else:
            assert both == [size, size], (link, both, size)
    if rule == "reduce-broadcast":
        between = [max(n for link, n in carried.items() if link[1:] == ("NVLink", d))
                   for d in ("up", "down")]  # fmt: skip
        assert between == [2 << 20, 2 << 20]
