"""What several cases ask the planner and the simulation."""

from __future__ import annotations

import json
from typing import Any

from sumpter import _native
from sumpter.profiles import Layer, Profile, Tensor

MIB, GIB = 1 << 20, 1 << 30


def plan(**request: Any) -> dict[str, Any]:
    """What `sumpter plan --json` says."""
    return json.loads(_native.plan(json.dumps(request)))


def transfer_s(size_bytes: float, gbps: float) -> float:
    """M/B: a link's time for so many bytes."""
    return size_bytes * 8e-9 / gbps


def one_tensor(size_bytes: int) -> Profile:
    """One tensor that is ready at once: an iteration's overhead is the time of a round."""
    layer, tensor = Layer("all", 1.0, 0.0), Tensor("tensor", 0, size_bytes, "float32", 0.0)
    return Profile("round", "published", None, 1, 1.0, 0.0, (layer,), (tensor,), add=None)


def listed(workers: int, servers: int, gbps: float) -> str:
    """A machine list of equal links, which is planned by water-filling, not by the closed form."""
    lines = []
    for role, count in (("gpu", workers), ("cpu", servers)):
        if count:
            lines += ["[[machine]]", f'role = "{role}"', f"count = {count}"]
            lines += [f"bandwidth_gbps = {gbps}"]
    return "\n".join([*lines, ""])
