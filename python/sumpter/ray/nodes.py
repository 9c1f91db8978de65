"""Which nodes of a Ray cluster may take helpers. Pure functions of what Ray says of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sumpter._words import counted

# Ray gives every node this label.
NODE_ID = "ray.io/node-id"

# What Ray calls the accelerators that it counts as resources.
_ACCELERATORS = (
    *("GPU", "TPU", "HPU", "NPU", "TTNPU", "neuron_cores", "RBLN", "FURIOSA", "MBLT"),
    *("MOBILINT_ARIES", "MOBILINT_REGULUS"),
)
# How a resource begins that says of which type the accelerators are.
_TYPE = "accelerator_type:"

# Of a large cluster not every node is in a message.
_MOST_NODES = 8


@dataclass(frozen=True)
class Node:
    """A node that is alive."""

    id: str
    address: str
    resources: Mapping[str, float]

    @property
    def accelerator(self) -> str:
        """The name of an accelerator that it has, or nothing."""
        for name, amount in self.resources.items():
            if amount and (name in _ACCELERATORS or name.startswith(_TYPE)):
                return name.removeprefix(_TYPE)
        return ""


def alive(listed: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The nodes of `ray.nodes()` that are alive."""
    return [
        Node(entry["NodeID"], entry["NodeManagerAddress"], entry.get("Resources") or {})
        for entry in listed
        if entry["Alive"]
    ]


def selector(nodes: Iterable[Node], occupied: Collection[str]) -> dict[str, str]:
    """The labels of a node for helpers: no accelerator, and none of the ids in `occupied`.

    It excludes nodes instead of naming those that fit, so that a node which joins the cluster later
    may take a helper.
    """
    excluded = sorted(node.id for node in nodes if node.accelerator or node.id in occupied)
    return {NODE_ID: f"!in({','.join(excluded)})"} if excluded else {}


def machine(nodes: Sequence[Node], own: str) -> str | None:
    """What to call the machine of the node `own`, if several nodes are on one address.

    Nodes of one address are a cluster that was started on one machine, to try it out: its nodes
    stand for machines. Elsewhere a machine is recognised by itself.
    """
    shared = Counter(node.address for node in nodes)
    address = next((node.address for node in nodes if node.id == own), None)
    return f"node-{own[:8]}" if address is not None and shared[address] > 1 else None


def no_place(
    count: int,
    resources: Mapping[str, float],
    nodes: Sequence[Node],
    occupied: Collection[str],
    labels: Mapping[str, str] | None,
    waited_s: float,
) -> str:
    """Why there is no place for helpers, and what to do."""
    reasons = [f"{node.address} {_fitness(node, resources, occupied, labels)}" for node in nodes]
    if len(reasons) > _MOST_NODES:
        reasons[_MOST_NODES:] = [f"and {len(reasons) - _MOST_NODES} more"]
    return (
        f"no place for {counted(count, 'helper')} of {_written(resources)}, each on a node of its "
        f"own, within {waited_s:g} s (setting start_timeout_s). The cluster has "
        f"{counted(len(nodes), 'node')}: {'; '.join(reasons)}. Ask for fewer helpers or for less "
        "in resources_per_helper, add CPU nodes, or choose nodes by helper_label_selector"
    )


def _fitness(
    node: Node,
    resources: Mapping[str, float],
    occupied: Collection[str],
    labels: Mapping[str, str] | None,
) -> str:
    if labels is None:
        if node.accelerator:
            return f"has an accelerator ({node.accelerator})"
        if node.id in occupied:
            return "runs ranks of this job"
    lacking = {
        name: amount for name, amount in resources.items() if node.resources.get(name, 0.0) < amount
    }
    if lacking:
        return f"does not have {_written(lacking)}"
    return "has the resources, unless they are in use" + (
        f" or it lacks the labels {dict(labels)}" if labels else ""
    )


def _written(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
