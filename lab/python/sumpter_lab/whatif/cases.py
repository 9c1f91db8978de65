"""Clusters to be tried with a profile, and the answers. The simulation is in Rust."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sumpter.profiles import Profile
from sumpter_lab import _native
from sumpter_lab.whatif.codecs import CodecRate, measured

ARCHITECTURES = ("allreduce", "ps", "sumpter")
# In which partitions begin: as their gradients get ready, or as the next forward pass needs them.
ORDERS = ("readiness", "forward")


# How the GPUs of one machine add: by the rule of `sumpter plan --machines`, or in another way.
# "roots=" and names of GPUs with "+" between them is one more: those are roots in turn.
LOCAL_REDUCTIONS = ("rule", "direct", "cpu-assisted", "reduce-scatter")


@dataclass(frozen=True)
class Case:
    """A cluster, and how gradients travel in it.

    Its machines are equal, or those of a machine list (see `listed`). Fusion is all-reduce's;
    partitions and credit are those of the other architectures. The defaults are those of NetAI'20
    and of this library's settings.
    """

    workers: int  # GPU machines, each with one contribution
    servers: int = 0  # CPU machines that help
    architecture: str = "allreduce"  # one of ARCHITECTURES
    bandwidth_gbps: float = 100.0  # of each machine, each way
    # A ratio that divides the bytes on the links, and nothing else; or a codec as in
    # "topk:k=0.01", which takes the cores' time and leaves small tensors alone.
    compression: float | str = 1.0
    transport_efficiency: float = 1.0  # the part of the bandwidth that is used
    fusion_bytes: int = 64 << 20
    fusion_timeout_s: float = 0.005
    partition_bytes: int = 256 << 10
    credit_bytes: int | None = None  # None: as a job takes it at this bandwidth
    overlap_forward: bool = False  # layers begin when their own gradients are there
    # One of ORDERS. None is what a job does: "forward" with overlap_forward, else "readiness".
    order: str | None = None
    hop_latency_s: float = 0.0  # all-reduce: of each of the 2(N-1) steps of a ring
    update_bytes_per_s: float | None = None  # of servers' optimizers; None: workers update
    # The TOML of a machine list. The numbers of machines are those of the list. With a bandwidth
    # other than its slowest GPU machine's all links between machines change in proportion.
    machines: str | None = None
    local_reduction: str = "rule"  # one of LOCAL_REDUCTIONS, or "roots=GPU+GPU"
    # Of a codec: how fast one core is (None: as measured on this machine), how many cores of each
    # machine code, and the size below which tensors travel as they are.
    codec_rate: CodecRate | None = None
    codec_cores: float = 1.0
    codec_min_bytes: int = 64 << 10


@dataclass(frozen=True)
class Listed:
    """What a machine list has."""

    workers: int  # GPU machines
    servers: int  # CPU machines
    gpus: int  # a machine that does not list its devices counts as one
    racks: int
    bandwidth_gbps: float  # of the slowest link of a GPU machine
    local_reductions: list[tuple[str, str]]  # a machine of each kind, and how its GPUs add


def described_list(machines: str, local_reduction: str = "rule") -> Listed:
    """What the TOML of a machine list has.

    Raises ConfigError, which names the entry and the field, for a list that cannot be, or a local
    reduction that its machines cannot have.
    """
    return Listed(**json.loads(_native.whatif_machines(machines, local_reduction)))


def listed(machines: str, *, local_reduction: str = "rule", **fields: Any) -> Case:
    """The case of a machine list in TOML, as `sumpter plan --machines` reads it.

    `fields` are those of Case. Without a bandwidth it is the list's. Raises ConfigError as
    `described_list`.
    """
    found = described_list(machines, local_reduction)
    given: dict[str, Any] = {"bandwidth_gbps": found.bandwidth_gbps, **fields}
    return Case(
        workers=found.workers,
        servers=found.servers,
        machines=machines,
        local_reduction=local_reduction,
        **given,
    )


@dataclass(frozen=True)
class Outcome:
    """One iteration in a case."""

    scaling_factor: float  # compute time over iteration time
    iteration_time_s: float
    overhead_s: float  # what communication adds
    # "network", "addition", "inside" for links inside machines, "codec", or "none" where overhead
    # is under 1 %; None if it was not asked for
    bottleneck: str | None


def simulate(profile: Profile, cases: Sequence[Case], *, bottleneck: bool = True) -> list[Outcome]:
    """One outcome for each case, in order. Without the bottleneck it is two to four times faster.

    Cases that follow one another and differ in neither machines, architecture nor partition size
    share the work of placing partitions. The rates of codecs that no case gives are measured, and
    differ a little from process to process. Raises ConfigError, which names the field and what was
    expected, for a case that cannot be.
    """
    request = {
        "profile": _profile(profile),
        "cases": [_case(case) for case in cases],
        "bottleneck": bottleneck,
    }
    answers = json.loads(_native.whatif(json.dumps(request)))
    return [Outcome(**answer) for answer in answers]


def described(case: Case, outcome: Outcome) -> dict[str, Any]:
    """The object that `sumpter whatif --json` prints for a case."""
    names = ("workers", "servers", "architecture", "bandwidth_gbps", "compression")
    if case.machines is not None:
        names += ("local_reduction",)
    results = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    if isinstance(case.compression, str):
        coding = {"codec_rate": rate_of(case)._asdict(), "codec_cores": case.codec_cores}
        results = coding | results
    return {name: getattr(case, name) for name in names} | results


def rate_of(case: Case) -> CodecRate:
    """How fast the codec of a case is: what it says, else what this machine measures."""
    if case.codec_rate is not None:
        return case.codec_rate
    return measured(str(case.compression))


def _case(case: Case) -> dict[str, Any]:
    request = asdict(case)
    for name in ("codec_rate", "codec_cores", "codec_min_bytes"):
        del request[name]
    if not isinstance(case.compression, str):
        return request | {"codec": None}
    codec = {
        "name": case.compression,
        "rates": list(rate_of(case)),
        "cores": case.codec_cores,
        "least_bytes": case.codec_min_bytes,
    }
    return request | {"compression": 1.0, "codec": codec}


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        "iteration_s": profile.iteration_s,
        "backward_s": profile.backward_s,
        "forward_s": profile.forward_times_s,
        "tensors": [(tensor.layer, tensor.bytes, tensor.ready_s) for tensor in profile.tensors],
        "dtypes": [tensor.dtype for tensor in profile.tensors],
        "add": profile.add,
    }
