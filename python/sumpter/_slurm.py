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


def rack_of(address: str, pattern: str, node: str = "") -> str | None:
    """The innermost switch or block of a node with this address in Slurm's topology, if it has one.

    `s0.s2.node7` with the pattern `switch.switch.node` is below `s2`; a flat topology has none.
    Names may have dots themselves: `node`, where it is known, tells what is the node's. Where the
    others are not one for each level, all of them are the rack's name.
    """
    address, levels = address.strip(), pattern.strip().count(".")
    if not levels:
        return None
    if node and address.endswith(f".{node}"):
        above = address.removesuffix(f".{node}")
        return above.rpartition(".")[2] if above.count(".") < levels else above
    names = address.split(".", levels)
    if len(names) <= levels:
        raise ValueError("must have a name for each level of SLURM_TOPOLOGY_ADDR_PATTERN")
    return names[-2]


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
