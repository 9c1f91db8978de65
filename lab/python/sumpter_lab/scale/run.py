"""Phases of a job of many members, each with what it costs the coordinator."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sumpter._failure import Failure
from sumpter_lab import _native
from sumpter_lab.scaffold.network.counters import available_bytes
from sumpter_lab.scaffold.results import record
from sumpter_lab.scaffold.results.table import Column, Row, figure
from sumpter_lab.scale.coordinator import Coordinator, running

# How often a member says that it is there, within the silence after which it counts as dead.
_BEATS_PER_TIMEOUT = 4
# How long a phase may take; a slower one has failed.
_PATIENCE_S = 300.0
# A member here: a thread, its runtime and its session; and what it keeps of each other member.
_MEMBER_BYTES, _VIEW_BYTES = 256 << 10, 512
_MEMBER_FILES, _OTHER_FILES = 6, 256
_TENSOR_BYTES = 4 << 20
# Expected seconds of a member's phases, for the progress bar.
_START_S, _EACH_S = 3.0, 0.02


class Progress(Protocol):
    """What shows a run's progress; durations are in seconds."""

    def estimate(self, total_s: float) -> None: ...
    def stage(self, what: str, expected_s: float) -> None: ...


@dataclass(frozen=True)
class Spec:
    """Jobs to measure: numbers of workers; servers, lanes of each, and tensors of every job."""

    members: Sequence[int]
    servers: int
    lanes: int
    tensors: int
    beat_s: float
    peer_timeout_s: float


def run(spec: Spec, progress: Progress) -> Iterator[Row]:
    """A row for each number of members. Raises Failure or SumpterError where one cannot be had."""
    _check(max(spec.members) + spec.servers)
    expected = [_START_S + 3 * spec.beat_s + _EACH_S * count for count in spec.members]
    progress.estimate(sum(expected))
    for count, seconds in zip(spec.members, expected, strict=True):
        progress.stage(f"{count} members", seconds)
        yield {**_row(spec, count), **record.environment()}


def _check(members: int) -> None:
    """Refuses what this process cannot hold, before anything is started."""
    needed = members * (_MEMBER_BYTES + _VIEW_BYTES * members)
    if needed > (free := available_bytes()):
        raise Failure(
            f"{members} members in one process take {needed / 1e9:.1f} GB of memory, "
            f"{free / 1e9:.1f} GB are free: give fewer --members"
        )
    files = _MEMBER_FILES * members + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and files > hard:
        raise Failure(
            f"{members} members in one process take {files} open files, the system allows it "
            f"{hard}: raise the limit with `ulimit -n {files}`, or give fewer --members"
        )
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def _row(spec: Spec, workers: int) -> Row:
    lanes = workers + spec.servers * spec.lanes
    tensors = [_TENSOR_BYTES] * spec.tensors
    placement_s = _native.placement_s(
        workers=workers, servers=spec.servers, lanes=spec.lanes, tensors=tensors
    )
    row: Row = {
        "members": workers,
        "servers": spec.servers,
        "lanes": lanes,
        "tensors": spec.tensors,
        # To every lane elsewhere, and from every other worker.
        "connections_of_worker": lanes - 1 + workers - 1,
        "placement_ms": 1e3 * placement_s,
    }
    with running(spec.peer_timeout_s) as coordinator:
        row |= _phases(spec, workers, coordinator)
    return row


def _phases(spec: Spec, workers: int, coordinator: Coordinator) -> Row:
    idle = coordinator.usage()

    def phase(body: Callable[[], Any]) -> tuple[Any, float, float]:
        """What a phase gave, its seconds, and the coordinator's processor seconds in it."""
        before = coordinator.usage()
        found = body()
        after = coordinator.usage()
        return found, after.at_s - before.at_s, after.cpu_s - before.cpu_s

    members, join_s, join_cpu_s = phase(
        lambda: _native.Members(
            coordinator=coordinator.address,
            token=coordinator.token,
            workers=workers,
            servers=spec.servers,
            lanes=spec.lanes,
            patience_s=_PATIENCE_S,
            peer_timeout_s=spec.peer_timeout_s,
        )
    )
    row: Row = {"join_s": join_s, "join_cpu_s": join_cpu_s, "plan_bytes": members.plan_bytes}
    # After a while of heartbeats: what a start leaves behind, and not what it takes.
    _, beat_s, beat_cpu_s = phase(lambda: members.beat(spec.beat_s, False))
    joined = coordinator.usage()
    row["heartbeat_cpu_share"] = beat_cpu_s / beat_s
    count = workers + spec.servers
    row["memory_bytes_per_member"] = (joined.rss_bytes - idle.rss_bytes) / count
    row["table_bytes"], row["declare_s"], row["declare_cpu_s"] = phase(
        lambda: members.declare(spec.tensors)
    )
    for load, waiting in (("training", False), ("waiting", True)):
        _, beat_s, beat_cpu_s = phase(lambda w=waiting: members.beat(spec.beat_s, w))
        row[f"{load}_cpu_share"] = beat_cpu_s / beat_s
        beats = count * beat_s / (spec.peer_timeout_s / _BEATS_PER_TIMEOUT)
        row[f"{load}_cpu_us_per_heartbeat"] = 1e6 * beat_cpu_s / beats
    for kind, apart in (("change", False), ("unlike_change", True)):
        (change_s, suspended_s, message_bytes), _, cpu_s = phase(lambda a=apart: members.change(a))
        row |= {
            f"{kind}_s": change_s,
            f"{kind}_suspended_s": suspended_s,
            f"{kind}_cpu_s": cpu_s,
            f"{kind}_bytes": message_bytes,
        }
    row["peak_bytes"] = coordinator.usage().peak_bytes
    members.leave()
    return row


COLUMNS = [
    Column("members", 7, figure("members", "{:d}")),
    Column("join s", 7, figure("join_s", "{:.2f}")),
    Column("CPU s", 6, figure("join_cpu_s", "{:.2f}")),
    Column("KiB each", 8, lambda row: f"{row['memory_bytes_per_member'] / 1024:.1f}"),
    Column("beats", 6, figure("heartbeat_cpu_share", "{:.1%}")),
    Column("training", 8, figure("training_cpu_share", "{:.1%}")),
    Column("waiting", 7, figure("waiting_cpu_share", "{:.1%}")),
    Column("table s", 7, figure("declare_s", "{:.2f}")),
    Column("change s", 8, figure("change_s", "{:.2f}")),
    Column("unlike", 7, figure("unlike_change_s", "{:.2f}")),
    Column("plan KiB", 8, lambda row: f"{row['plan_bytes'] / 1024:.1f}"),
    Column("placing ms", 10, figure("placement_ms", "{:.1f}")),
]
