"""What is inside this machine: PCIe switches, GPUs, NICs, NUMA nodes and NVLink.

`sumpter doctor --topology` prints it. It is read from sysfs and NVML, needs no root, and guesses
nothing: what cannot be read is unknown, with the path that was tried.
"""

from __future__ import annotations

from sumpter.topology.facts import RULES, Facts, Switch
from sumpter.topology.machine import Topology, read_topology
from sumpter.topology.nvlink import NvLink, read_nvlink
from sumpter.topology.sysfs import Sysfs, Unknown

__all__ = [
    "RULES",
    "Facts",
    "NvLink",
    "Switch",
    "Sysfs",
    "Topology",
    "Unknown",
    "read_nvlink",
    "read_topology",
]
