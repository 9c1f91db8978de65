"""Clusters to be tried with a profile, and the answers. The simulation is in Rust."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sumpter.profiles import Profile
from sumpter_lab import _native

ARCHITECTURES = ("allreduce", "ps", "sumpter")
# In which partitions begin: as their gradients get ready, or as the next forward pass needs them.
ORDERS = ("readiness", "forward")


@dataclass(frozen=True)
class Case:
    """A cluster of equal machines, and how gradients travel in it.

    Fusion is all-reduce's; partitions and credit are those of the other architectures. The
    defaults are those of NetAI'20 and of this library's settings.
    """

    workers: int  # GPU machines, each with one contribution
    servers: int = 0  # CPU machines that help
    architecture: str = "allreduce"  # one of ARCHITECTURES
    bandwidth_gbps: float = 100.0  # of each machine, each way
    compression: float = 1.0  # divides the bytes on the links, and nothing else
    transport_efficiency: float = 1.0  # the part of the bandwidth that is used
    fusion_bytes: int = 64 << 20
    fusion_timeout_s: float = 0.005
    partition_bytes: int = 256 << 10
    credit_bytes: int | None = None  # None: as a job takes it at this bandwidth
    overlap_forward: bool = False  # layers begin when their own gradients are there
    # One of ORDERS. None is what a job does: "forward" with overlap_forward, else "readiness".
    order: str | None = None


@dataclass(frozen=True)
class Outcome:
    """One iteration in a case."""

    scaling_factor: float  # compute time over iteration time
    iteration_time_s: float
    overhead_s: float  # what communication adds
    # "network", "addition", or "none" where overhead is under 1 %; None if it was not asked for
    bottleneck: str | None


def simulate(profile: Profile, cases: Sequence[Case], *, bottleneck: bool = True) -> list[Outcome]:
    """One outcome for each case, in order. Without the bottleneck it is two to three times faster.

    Cases that follow one another and differ in neither machines, architecture nor partition size
    share the work of placing partitions. Raises ConfigError, which names the field and what was
    expected, for a case that cannot be.
    """
    request = {
        "profile": _profile(profile),
        "cases": [asdict(case) for case in cases],
        "bottleneck": bottleneck,
    }
    answers = json.loads(_native.whatif(json.dumps(request)))
    return [Outcome(**answer) for answer in answers]


def described(case: Case, outcome: Outcome) -> dict[str, Any]:
    """The object that `sumpter whatif --json` prints for a case."""
    names = ("workers", "servers", "architecture", "bandwidth_gbps", "compression")
    results = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    return {name: getattr(case, name) for name in names} | results


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        "iteration_s": profile.iteration_s,
        "backward_s": profile.backward_s,
        "forward_s": profile.forward_times_s,
        "tensors": [(tensor.layer, tensor.bytes, tensor.ready_s) for tensor in profile.tensors],
        "add": profile.add,
    }
