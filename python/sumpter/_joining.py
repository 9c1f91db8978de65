"""Joining a job as scripts of Horovod and BytePS do it, for the fronts that have their names."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterable, Mapping

from sumpter._core import membership
from sumpter._core.membership import local_size, shutdown
from sumpter._core.process_sets import adopt
from sumpter._core.rendezvous import Board
from sumpter._core.session import Session
from sumpter._errors import UnsupportedError


def enter(
    comm: object,
    process_sets: object,
    settings: Mapping[str, object],
    board: Callable[[], Board] | None = None,
) -> None:
    """Joins the job, unless this process has joined already, and adds process sets.

    `comm` is Horovod's or BytePS' first argument: it may list the ranks of the job, all of them.
    """
    ranks = _listed(comm)
    before = membership.peek()
    session = membership.join(settings, board)
    fresh = session is not before
    try:
        if ranks is not None and ranks != list(range(session.world_size)):
            raise UnsupportedError(
                f"init(comm={ranks}) asks for some ranks of a job of {session.world_size}: every "
                "rank takes part; make a ProcessSet for collectives among some"
            )
        if fresh:
            adopt(process_sets)
    except BaseException:
        if fresh:
            shutdown()
        raise


def suspend() -> None:
    """Leaves the job, as shutdown(), for resume() to join the next one."""
    global _suspended
    workers = local_size()
    shutdown()
    _suspended = workers


def resume(num_workers: int, num_servers: int, global_rank: int, init: Callable[..., None]) -> None:
    """Joins a job of `num_workers` machines by a front's `init`, after suspend()."""
    global _suspended
    if _suspended is None:
        raise ValueError("resume() is for after suspend(): call init() to join the first time")
    init(world_size=num_workers * _suspended, rank=global_rank, servers=num_servers)
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


def _listed(comm: object) -> list[int] | None:
    """The ranks in Horovod's `comm`; None if there are none or if it is BytePS' `lazy`."""
    if comm is None or isinstance(comm, bool):
        return None
    if isinstance(comm, str) or not isinstance(comm, Iterable):
        raise UnsupportedError("init(comm=...) needs MPI; Sumpter has no communicators")
    ranks = sorted(int(rank) for rank in comm)
    # An empty list is Horovod's default.
    return ranks or None


# The ranks of this machine between suspend() and resume().
_suspended: int | None = None

# The worker's seconds and bytes when get_pushpull_speed() was last called.
_speed_seen: weakref.WeakKeyDictionary[Session, tuple[float, float]] = weakref.WeakKeyDictionary()
