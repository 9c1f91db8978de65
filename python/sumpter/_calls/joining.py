"""Joining and leaving a job from fronts that hand host arrays in, and what is known of it."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable

from sumpter._calls.objects import allgather_object
from sumpter._core import membership, names
from sumpter._core.process_sets import ProcessSet, global_process_set, label, members
from sumpter._core.session import Session


def init(**settings: object) -> None:
    """Joins the job; does nothing if this process has joined already.

    Settings given by name override the environment.
    """
    membership.join(settings)


def barrier(name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it; not for use within a compiled function."""
    ranks = None if process_set is global_process_set else members(process_set)
    word = "barrier" if name is None else f"barrier.{name}"
    membership.current().barrier(word + label(process_set), ranks).wait()


def join(device: int = -1) -> int:
    """Waits until every rank has called this, for ranks that have less data than others.

    Meanwhile this rank contributes zeros to the reductions that the others begin; averages still
    divide by all ranks. Gathers and exchanges, and a broadcast from it, are errors on all ranks.
    Operations of its own must be done before. Returns the last rank to call this, the same on every
    rank. `device` changes nothing.
    """
    session = membership.current()
    last = session.out_of_data()
    # Ranks know of the calls that they have made themselves.
    known = names.forget(session)
    names.learn(session, allgather_object(known, name="names"))
    return last


def suspend() -> None:
    """Leaves the job, as shutdown(), for resume() to join the next one."""
    global _suspended
    workers = membership.local_size()
    membership.shutdown()
    _suspended = workers


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job of `num_workers` machines after suspend(), as its rank `global_rank`.

    As in BytePS a worker is a machine with as many ranks as this one had before suspend(), and
    `num_servers` summation servers must have joined before the job starts. `context` is accepted
    for compatibility. Raises ValueError without a suspend() before it.
    """
    resume_by(init, num_workers, num_servers, global_rank)


def resume_by(
    join: Callable[..., object], num_workers: int, num_servers: int, global_rank: int
) -> None:
    """resume(), where `join` is the front's init()."""
    global _suspended
    if _suspended is None:
        raise ValueError("resume() is for after suspend(): call init() to join the first time")
    join(world_size=num_workers * _suspended, rank=global_rank, servers=num_servers)
    _suspended = None


def get_pushpull_speed() -> tuple[int, float]:
    """The time in milliseconds since 1970, and how fast tensors were summed up to it, in MB/s.

    The rate is that of this worker's finished operations since the last call, or since init(), in
    megabytes of 10^6 bytes of its own tensors.
    """
    session = membership.current()
    counters = json.loads(session.worker.stats())["counters"]
    now = (counters["elapsed_s"], counters["tensor_bytes"])
    before = _speed_seen.get(session, (0.0, 0.0))
    _speed_seen[session] = now
    elapsed = now[0] - before[0]
    speed = (now[1] - before[1]) / elapsed / 1e6 if elapsed > 0 else 0.0
    return time.time_ns() // 1_000_000, speed


# The ranks of this machine between suspend() and resume().
_suspended: int | None = None

# The worker's seconds and bytes when get_pushpull_speed() was last called.
_speed_seen: weakref.WeakKeyDictionary[Session, tuple[float, float]] = weakref.WeakKeyDictionary()
