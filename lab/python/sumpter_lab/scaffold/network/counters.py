"""What the kernel counts: bytes and retransmits by machine, time of cores and of processes.

A process shows its namespace's counters in its own folder of /proc, so nothing has to run inside
a machine's namespace to read them. No process is in that of the bridges: a thread enters it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sumpter_lab.scaffold.network import namespaces
from sumpter_lab.scaffold.network.cluster import INTERFACE, Trunk


@dataclass(frozen=True)
class LinkCounts:
    """What one machine's interface has moved."""

    sent_bytes: int
    received_bytes: int
    retransmits: int

    def __sub__(self, earlier: LinkCounts) -> LinkCounts:
        return LinkCounts(
            self.sent_bytes - earlier.sent_bytes,
            self.received_bytes - earlier.received_bytes,
            self.retransmits - earlier.retransmits,
        )

    def __add__(self, other: LinkCounts) -> LinkCounts:
        return LinkCounts(
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
            self.retransmits + other.retransmits,
        )


@dataclass(frozen=True)
class CoreTicks:
    """Time of all cores together, in the kernel's ticks."""

    total: int
    idle: int
    steal: int

    def __sub__(self, earlier: CoreTicks) -> CoreTicks:
        return CoreTicks(
            self.total - earlier.total, self.idle - earlier.idle, self.steal - earlier.steal
        )

    def __add__(self, other: CoreTicks) -> CoreTicks:
        return CoreTicks(self.total + other.total, self.idle + other.idle, self.steal + other.steal)


NO_LINK = LinkCounts(0, 0, 0)
NO_TICKS = CoreTicks(0, 0, 0)


def link_counts(pid: int, interface: str = INTERFACE) -> LinkCounts:
    """The counters of the machine on which process `pid` runs."""
    folder = Path(f"/proc/{pid}/net")
    received, sent = interface_bytes((folder / "dev").read_text(), interface)
    return LinkCounts(sent, received, tcp_retransmits((folder / "snmp").read_text()))


def trunk_counts(trunks: Sequence[Trunk]) -> dict[str, LinkCounts]:
    """What has left each rack over its trunk and what has come in; no retransmits are known."""
    counts = {}
    tables = {name: namespaces.read(name, "net/dev") for name in {one.namespace for one in trunks}}
    for trunk in trunks:
        received, sent = interface_bytes(tables[trunk.namespace], trunk.device)
        counts[trunk.rack] = LinkCounts(sent, received, 0)
    return counts


def interface_bytes(table: str, interface: str) -> tuple[int, int]:
    """Bytes received and sent by an interface, from the text of /proc/net/dev."""
    for line in table.splitlines():
        name, colon, figures = line.partition(":")
        if colon and name.strip() == interface:
            columns = figures.split()
            return int(columns[0]), int(columns[8])
    raise ValueError(f"no interface {interface} in /proc/net/dev")


def tcp_retransmits(table: str) -> int:
    """Segments sent again, from the text of /proc/net/snmp."""
    names, values = (line.split() for line in table.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def core_ticks() -> CoreTicks:
    """The time of all cores so far."""
    return parse_core_ticks(Path("/proc/stat").read_text())


def parse_core_ticks(table: str) -> CoreTicks:
    """The first line of /proc/stat."""
    # user nice system idle iowait irq softirq steal; guest time is part of user.
    ticks = [int(column) for column in table.splitlines()[0].split()[1:9]]
    return CoreTicks(sum(ticks), ticks[3] + ticks[4], ticks[7])


def process_cpu_s(pid: int) -> float:
    """The time of all threads of a process on a core."""
    # The kernel's number for the clock of another process; finer than the ticks in /proc.
    return time.clock_gettime((~pid << 3) | 2)


@dataclass(frozen=True)
class ProcessMemory:
    """What a process has of the machine's memory."""

    private_bytes: int  # pages that no other process has
    pss_bytes: int  # and its part of those that it shares


def process_memory(pid: int) -> ProcessMemory:
    """The memory of a process that is there."""
    return parse_process_memory(Path(f"/proc/{pid}/smaps_rollup").read_text())


def parse_process_memory(table: str) -> ProcessMemory:
    """The text of /proc/PID/smaps_rollup."""
    rows = (line.split() for line in table.splitlines()[1:])
    sizes = {row[0]: int(row[1]) * 1024 for row in rows}
    return ProcessMemory(sizes["Private_Clean:"] + sizes["Private_Dirty:"], sizes["Pss:"])


def available_bytes() -> int:
    """The memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no MemAvailable in /proc/meminfo")
