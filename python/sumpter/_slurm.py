"""Reads the two lists that Slurm writes in a notation of its own. Pure functions of a text."""

import re


def first_host(hosts: str) -> str:
    """The first host of a list such as `node[003-006,9],gpu1`: here `node003`.

    A name may hold several brackets (`rack[1-2]n[07-08]` begins with `rack1n07`).
    """
    name = re.match(r"((?:[^,\[\]]|\[\w[\w,-]*\])+)(?:,|$)", hosts.strip())
    if name is None:
        raise ValueError("must be a list of hosts as Slurm writes them")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", name[1])


def rack_of(address: str, pattern: str) -> str | None:
    """The innermost switch or block of a node with this address in Slurm's topology, if it has one.

    `s0.s2.node7` with the pattern `switch.switch.node` is below `s2`; a flat topology has none.
    """
    names, kinds = address.strip().split("."), pattern.strip().split(".")
    if len(names) != len(kinds):
        raise ValueError("must have a name for each level of SLURM_TOPOLOGY_ADDR_PATTERN")
    return names[-2] if len(names) > 1 else None


def tasks_on(node: int, tasks: str) -> int:
    """The tasks on one node (numbered from 0) by a list such as `4(x2),3`: 4, 4 and 3."""
    for part in tasks.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            raise ValueError("must be a list of task counts as Slurm writes them")
        nodes = int(match[2] or 1)
        if node < nodes:
            return int(match[1])
        node -= nodes
    raise ValueError("must count every node up to SLURM_NODEID")
