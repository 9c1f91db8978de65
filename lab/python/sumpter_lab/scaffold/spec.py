"""An emulated cluster and what is summed on it, checked before anything is built."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path

from sumpter import _native
from sumpter._assignments import parse_assignments
from sumpter._failure import Failure, UsageError
from sumpter._sizes import parse_size
from sumpter_lab.profiles import architectures
from sumpter_lab.scaffold.network import counters, namespaces
from sumpter_lab.scaffold.network.cluster import MOST_MACHINES, Racks

PEERS = ("gloo", "ps", "plain", "flat")
# Update rules with which rounds can be measured; their optimizers are in updates.py.
RULES = ("sgd", "sgd_momentum", "sgd_nesterov", "adam", "rmsprop", "adagrad")
# A process on top of what it shares with the fork server: stacks, heaps, socket buffers.
PROCESS_BYTES = 80 << 20
# Emulating one Mb/s of one link costs at most this share of a core (measured at 100-800 Mb/s).
CORES_PER_LINK_MBIT = 0.4 / (16 * 200)

# These follow from the other options, or from where a process runs.
_DECIDED_HERE = frozenset(
    {
        *("bandwidth_gbps", "coordinator", "interfaces", "job", "lanes", "local_rank"),
        *("local_size", "machine", "port", "rank", "servers", "token", "token_file"),
        *("world_size", "rack", "trunk_gbps"),
    }
)


@dataclass(frozen=True)
class Load:
    """What is summed in each round: one tensor, or the gradients of a model."""

    name: str  # of the model; empty for a single tensor
    shapes: tuple[tuple[int, ...], ...]

    @property
    def bytes(self) -> int:
        return 4 * sum(map(architectures.elements, self.shapes))

    @property
    def largest_bytes(self) -> int:
        return 4 * max(map(architectures.elements, self.shapes))


def tensor(size_bytes: int) -> Load:
    """One f32 tensor."""
    return Load("", ((size_bytes // 4,),))


def model(name: str, scale: float = 1.0) -> Load:
    """The gradients of a model, in forward order; with a scale, each as a vector of as many times
    fewer elements."""
    try:
        shapes = [shape for _, shape in architectures.shapes(name)]
    except ValueError as error:
        raise UsageError(f"--model: {error}") from None
    if scale != 1:
        shapes = [(max(1, round(architectures.elements(one) / scale)),) for one in shapes]
    return Load(name, tuple(shapes))


@dataclass(frozen=True)
class Spec:
    """One run."""

    workers: list[int]
    servers: list[int]
    gpu_rates_mbit: list[float]
    cpu_rates_mbit: list[float]
    loads: list[Load]
    rounds: int
    warmup: int
    peers: tuple[str, ...] = ("gloo",)
    lanes: int = 1
    # Whether connections start slowly again after a pause.
    idle_restart: bool = True
    settings: dict[str, str] = field(default_factory=dict)
    # Update rules: rounds of Sumpter that update parameters, in the job that sums as well.
    rules: tuple[str, ...] = ()
    racks: Racks | None = None

    def cells(self) -> list[tuple[Load, int, int]]:
        """All combinations, in the order they run: by load, then n, then k."""
        return [(load, n, k) for load in self.loads for n in self.workers for k in self.servers]

    def systems(self, load: Load, servers: int) -> tuple[str, ...]:
        """What is measured in a cell, in the order of turns."""
        gloo = "gloo" in self.peers
        if load.name:
            known = ("sumpter", "sumpter_ddp") + (("gloo_ddp",) if gloo else ())
        else:
            known = ("sumpter",) + (("gloo",) if gloo else ())
        known += (*self.rules, *self.own_jobs(servers))
        return known + (("plain",) if "plain" in self.peers else ())

    def own_jobs(self, servers: int) -> dict[str, dict[str, str]]:
        """Systems that are Sumpter with other settings, hence jobs of their own."""
        named = {"ps": {"architecture": "ps"}} if "ps" in self.peers and servers else {}
        # Its members have no rack settings.
        named |= {"flat": {}} if "flat" in self.peers else {}
        varied = (name for name in self.peers if "=" in name)
        return named | {name: parse_assignments([name]) for name in varied}


def check(spec: Spec) -> None:
    """Raises unless the run makes sense and this machine can do it."""
    _check_host()
    machines = max(spec.workers) + max(spec.servers)
    if not 2 <= machines <= MOST_MACHINES:
        raise UsageError(
            f"{machines} machine(s) asked for: a network has at least 2, and this one at most "
            f"{MOST_MACHINES}"
        )
    check_racks(spec)
    _check_settings(spec)
    check_memory(spec, counters.available_bytes())


def check_racks(spec: Spec) -> None:
    """Raises unless the machines of every cell fill equal racks of two or more."""
    if spec.racks is None:
        if "flat" in spec.peers:
            raise UsageError("--peers flat: without --racks nothing but flat trees is measured")
        return
    racks = spec.racks.count
    for option, counts in (("--workers", spec.workers), ("--servers", spec.servers)):
        for count in counts:
            if count % racks:
                raise UsageError(
                    f"{option} {count}: {racks} racks have equally many machines of each role; "
                    f"take multiples of {racks}"
                )
    for workers in spec.workers:
        for servers in spec.servers:
            if workers + servers < 2 * racks:
                raise UsageError(
                    f"--racks {racks}: with --workers {workers} and --servers {servers} a rack "
                    "has one machine, and no aggregate to make of it; take fewer racks or more "
                    "machines"
                )


def warnings(spec: Spec) -> list[str]:
    """What makes the figures doubtful, known before the run."""
    notes = []
    others = namespaces.living_runs()
    if others:
        notes.append("another `sumpter bench emulate` is running: both will disturb each other")
    cores = len(os.sched_getaffinity(0))
    total_mbit = sum(spec.gpu_rates_mbit) + sum(spec.cpu_rates_mbit)
    if spec.racks is not None:
        total_mbit += spec.racks.count * spec.racks.trunk_mbit
    if total_mbit * CORES_PER_LINK_MBIT > cores / 2:
        notes.append(
            f"links of {total_mbit:g} Mb/s in all may be more than {cores} core(s) can move; "
            "cells where that happened are marked cpu_bound"
        )
    return notes


def check_memory(spec: Spec, available_bytes: int) -> None:
    """Raises if the largest cell would not fit into the memory."""
    for load, workers, servers in spec.cells():
        need = memory_bytes(spec, load, workers, servers)
        if need > available_bytes:
            what = f"--model {load.name}" if load.name else f"--bytes {load.bytes}"
            raise Failure(
                f"{what} with {workers} workers and {servers} servers needs about "
                f"{need / 2**30:.1f} GiB, but {available_bytes / 2**30:.1f} GiB are available: "
                "take smaller tensors or fewer workers"
            )


def memory_bytes(spec: Spec, load: Load, workers: int, servers: int) -> int:
    """An upper estimate of what one cell needs."""
    systems = spec.systems(load, servers)
    jobs = 1 + len(spec.own_jobs(servers))
    # In each worker: the tensors, the pattern they are made from, and a transport's copies.
    each = 2 * load.bytes + load.largest_bytes
    # In each DDP module: parameters, gradients, buckets, and the gradient that is replayed.
    modules = sum(system.endswith("_ddp") for system in systems)
    ddp = modules * (3 * load.bytes + load.largest_bytes)
    # In the lanes of all servers together: two rounds of accumulators.
    lanes = 2 * load.bytes
    # Of a variable: its value in each worker, and all its parts in the lanes and in the mirrors.
    slots = _native.update_rules()
    parts = sum(workers + 2 * (1 + len(slots[rule])) for rule in spec.rules)
    processes = jobs * (workers + servers) * PROCESS_BYTES
    return jobs * (workers * each + lanes) + workers * ddp + parts * load.bytes + processes


def _check_host() -> None:
    namespaces.check_tools()
    folder = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    if "cubic" not in folder.read_text().split():
        raise Failure("this kernel has no cubic congestion control: load the module tcp_cubic")
    # Not imported here: that takes seconds, and only the measured processes need it.
    if importlib.util.find_spec("torch") is None:
        raise Failure("torch is missing: pip install 'sumpter[torch]'")


def _check_settings(spec: Spec) -> None:
    own_jobs = spec.own_jobs(max(spec.servers))
    for option, given in (
        ("--set", spec.settings),
        *(("--peers", own) for own in own_jobs.values()),
    ):
        for name in given:
            if name in _DECIDED_HERE:
                raise UsageError(f"{option} {name}: the emulated cluster decides this itself")
    # The table of settings checks names and values when a role starts.
    common = {**spec.settings, "token": _native.generate_token(), "lanes": str(spec.lanes)}
    for own in ({}, *own_jobs.values()):
        _native.Coordinator("127.0.0.1:0", {**common, **own}).stop()


def bandwidths_gbps(goodput_mbit: dict[str, float]) -> dict[str, float]:
    """The link settings of each machine."""
    return {name: mbit / 1000 for name, mbit in goodput_mbit.items()}


def credit_bytes(spec: Spec, goodput_mbit: dict[str, float]) -> int:
    """The credit of the job: what is set, or what it takes by itself."""
    given = spec.settings.get("credit_bytes", "auto")
    slowest_gbps = min(bandwidths_gbps(goodput_mbit).values())
    return _native.default_credit(slowest_gbps) if given == "auto" else parse_size(given)
