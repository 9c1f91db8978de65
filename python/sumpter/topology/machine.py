"""A machine: its PCI tree, NUMA nodes, interfaces and NVLinks, read at one time."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sumpter.topology.devices import NIC, HostBridge, read_tree
from sumpter.topology.facts import Facts, gather
from sumpter.topology.interfaces import Interface, read_network
from sumpter.topology.numa import NumaNode, read_nodes
from sumpter.topology.nvlink import NvLink, load_nvml, read_nvlink
from sumpter.topology.sysfs import Sysfs, Unknown


@dataclass(frozen=True)
class Topology:
    """All that was found. `elsewhere` are interfaces of hardware that is no PCI NIC (USB, Hyper-V);
    `unknown` is what could not be read."""

    sysfs: str
    nodes: tuple[NumaNode, ...]
    bridges: tuple[HostBridge, ...]
    elsewhere: tuple[Interface, ...]
    nvlink: NvLink
    facts: Facts
    unknown: tuple[Unknown, ...]

    def names(self) -> dict[str, str]:
        """The name of each GPU in the report by its PCI address."""
        named = {d.address: d.name for bridge in self.bridges for d in bridge.walk()}
        return {gpu.address: gpu.address for gpu in self.nvlink.gpus} | named

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON; None is what is not known. GB/s are 10^9 bytes each way."""
        return {
            "sysfs": self.sysfs,
            "numa_nodes": [node.as_dict() for node in self.nodes],
            "host_bridges": [bridge.as_dict() for bridge in self.bridges],
            "interfaces_elsewhere": [each.as_dict() for each in self.elsewhere],
            "nvlink": self.nvlink.as_dict(),
            "facts": self.facts.as_dict(),
            "unknown": [
                {"what": each.what, "path": each.path, "why": each.why} for each in self.unknown
            ],
        }


def read_topology(
    sysfs: Sysfs | str | os.PathLike[str] = "/sys", nvlink: NvLink | None = None
) -> Topology:
    """Reads a machine's topology. Raises nothing for what cannot be read: that is in `unknown`.

    `sysfs` is the folder of sysfs, which may be another machine's that was copied; `nvlink` is that
    machine's then. Without it NVML is asked, if its binding is installed.
    """
    reader = sysfs if isinstance(sysfs, Sysfs) else Sysfs(sysfs)
    nodes = read_nodes(reader)
    network = read_network(reader)
    bridges = read_tree(reader, network)
    nvlink = read_nvlink(load_nvml()) if nvlink is None else nvlink
    nics = {d.address for bridge in bridges for d in bridge.walk() if d.kind == NIC}
    others = [each for a, found in network.interfaces.items() if a not in nics for each in found]
    whole = bool(bridges) and not network.elsewhere
    whole = whole and not any(each.what.startswith("place of ") for each in reader.unknown)
    return Topology(
        str(reader.root),
        nodes,
        bridges,
        (*network.elsewhere, *others),
        nvlink,
        gather(bridges, nvlink, whole),
        tuple(reader.unknown),
    )
