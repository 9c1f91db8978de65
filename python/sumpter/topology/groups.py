"""Which GPUs of a machine should reduce among each other, before anything leaves the machine.

By the rule of the machine (facts.py), after BytePS (OSDI'20, section 4.2): those of a PCIe switch,
or of an NVLink island. Of an island of which only some GPUs share a switch with a NIC, the others
hold the shards, since the NIC's traffic takes the link that the first would copy over.
"""

from __future__ import annotations

from dataclasses import dataclass

from sumpter.topology.machine import Topology


@dataclass(frozen=True)
class DeviceGroup:
    """A GPU's group: a name that is one group's in the machine, and whether it holds shards.

    The name is empty if the machine has no rule or nothing is shared, and `why` says so.
    """

    name: str
    shards: bool = True
    why: str = ""


def device_group(found: Topology, address: str) -> DeviceGroup:
    """The group of the GPU at a PCI address, as `0000:06:00.0`."""
    facts = found.facts
    if facts.rule is None:
        return DeviceGroup("", why=facts.why)
    name = found.names().get(address)
    if name is None:
        return DeviceGroup("", why=f"the GPU at {address} is not in the tree of PCI devices")
    switch = next((each for each in facts.switches if name in each.gpus), None)
    if facts.rule != "cpu-assisted":
        beside_nic = switch is not None and bool(switch.nics)
        return DeviceGroup("nvlink", facts.rule == "reduce-scatter" or not beside_nic)
    if switch is None:
        return DeviceGroup("", why=f"the GPU at {address} is below no switch")
    return DeviceGroup(f"switch-{switch.address}")
