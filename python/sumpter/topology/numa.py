"""NUMA nodes: their cores and memory."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from sumpter.topology.sysfs import Sysfs

_FOLDER = "devices/system/node"
_TOTAL = re.compile(r"MemTotal:\s+(\d{1,15}) kB")


@dataclass(frozen=True)
class NumaNode:
    """A node. `cores` is a list of numbers as the kernel writes it, such as `0-19,40-59`; it and
    `memory_bytes` are None where they are not known."""

    number: int
    cores: str | None
    core_count: int | None
    memory_bytes: int | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def read_nodes(sysfs: Sysfs) -> tuple[NumaNode, ...]:
    """All nodes in the order of their numbers; none, and a note, if the system reports none."""
    numbers = sorted(
        int(name.removeprefix("node"))
        for name in sysfs.names(_FOLDER, "NUMA nodes")
        if re.fullmatch(r"node[0-9]{1,6}", name)
    )
    return tuple(_node(sysfs, number) for number in numbers)


def _node(sysfs: Sysfs, number: int) -> NumaNode:
    what, path = f"cores of NUMA node {number}", f"{_FOLDER}/node{number}/cpulist"
    # Empty for a node that has memory only.
    cores = sysfs.read(path, what, may_be_empty=True)
    count = None
    if cores is not None:
        count = count_cores(cores)
        if count is None:
            sysfs.missing(what, path, f"holds {cores[:40]!r}, which is no list of cores")
            cores = None
    what, path = f"memory of NUMA node {number}", f"{_FOLDER}/node{number}/meminfo"
    text = sysfs.read(path, what)
    match = _TOTAL.search(text or "")
    if text is not None and match is None:
        sysfs.missing(what, path, "has no line MemTotal")
    return NumaNode(number, cores, count, int(match[1]) * 1024 if match else None)


def count_cores(cores: str) -> int | None:
    """How many numbers a list such as `0-19,40-59` has; None if it is no list."""
    total = 0
    for part in cores.split(",") if cores else ():
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return None
        total += last - first + 1
    return total
