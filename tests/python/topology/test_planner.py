"""The probe and the planner count switches in the same way, so both have the same rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recorded_machines import MACHINES, FakeNvml, expand, machine_list, topology
from sumpter import _native
from sumpter.topology import Topology, read_nvlink, read_topology

PORT = "060400 8086:6f04"
PLX = "060400 10b5:8764"
GPU = "030200 10de:1db5 8x16"
NIC = "020000 15b3:1017 8x16"


def planned(found: Topology) -> dict[str, Any]:
    """What `sumpter plan` says of the inside of two such machines."""
    request = {"machines": machine_list(found), "bytes": 1 << 30}
    (inside,) = json.loads(_native.plan(json.dumps(request)))["inside"]
    return inside["report"]


def check(found: Topology) -> None:
    facts, inside = found.facts, planned(found)
    assert facts.rule == inside["reduction"]
    assert facts.shares_switch == inside["gpu_direct"]
    if facts.rule == "reduce-broadcast":
        beside = {gpu for switch in facts.switches if switch.nics for gpu in switch.gpus}
        gpus = {d.name for b in found.bridges for d in b.walk() if d.kind == "gpu"}
        assert set(inside["roots"]) == gpus - beside


@pytest.mark.parametrize("name", MACHINES)
def test_the_rule_of_a_recorded_machine_is_the_planners(name: str, tmp_path: Path) -> None:
    found = topology(name, tmp_path)
    if name == "cloud_vm":
        assert not found.facts.placed and found.facts.rule is None
        return
    assert found.facts.rule is not None
    check(found)


# Lines below a root port each; GPUs are numbered in their order.
CASCADED = [
    f"00:01.0 {PORT}",
    f" 01:00.0 {PLX}",
    f"  02:00.0 {PLX}",
    "   03:00.0 " + NIC,
    f"  02:01.0 {PLX}",
    f"   04:00.0 {PLX}",
    f"    05:00.0 {PLX}",
    "     06:00.0 " + GPU,
    f"    05:01.0 {PLX}",
    "     07:00.0 " + GPU,
]
FLAT = [
    f"00:02.0 {PORT}",
    f" 11:00.0 {PLX}",
    f"  12:00.0 {PLX}",
    "   13:00.0 " + GPU,
    f"  12:01.0 {PLX}",
    "   14:00.0 " + GPU,
]
GPU_ALONE = [f"00:03.0 {PORT}", " 21:00.0 " + GPU]
NIC_ALONE = [f"00:04.0 {PORT}", " 31:00.0 " + NIC]


@pytest.mark.parametrize("nvlink", ["all", "some", "none"])
@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        # The NIC is beside the inner switch of the GPUs: all share one link to the CPU.
        ([*CASCADED], "reduce-scatter"),
        ([*CASCADED, *FLAT], "reduce-broadcast"),
        ([*CASCADED, *GPU_ALONE], "reduce-broadcast"),
        ([*FLAT, *NIC_ALONE], "reduce-scatter"),
        # A GPU and a NIC that are attached to the CPU share no link.
        ([*FLAT, *GPU_ALONE, *NIC_ALONE], "reduce-scatter"),
        ([*CASCADED, *GPU_ALONE, *NIC_ALONE], "reduce-broadcast"),
    ],
)
def test_cascaded_switches_and_devices_at_the_cpu_count_alike(
    lines: list[str], rule: str, nvlink: str, tmp_path: Path
) -> None:
    gpus = [f"0000:{line.split()[0]}" for line in lines if GPU in line]
    pairs = [f"{one} {one + 1} 1" for one in range(len(gpus) - 1)]
    pairs = {"all": pairs, "some": pairs[1:], "none": []}[nvlink]
    nvml = FakeNvml({"name": "V100", "gpus": gpus, "direct": pairs})
    pci = "\n".join(["host 0000:00 numa 0", *(f" {line}" for line in lines)])
    found = read_topology(expand({"pci": pci}, tmp_path), read_nvlink(nvml))
    assert found.facts.rule == (rule if nvlink == "all" else "cpu-assisted")
    check(found)
