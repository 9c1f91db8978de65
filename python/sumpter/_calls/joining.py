"""Joining and leaving a job from fronts that hand host arrays in, and what is known of it."""

from __future__ import annotations

from sumpter import _joining
from sumpter._calls.objects import allgather_object
from sumpter._core import membership, names
from sumpter._core.process_sets import ProcessSet, global_process_set, label, members
from sumpter._joining import get_pushpull_speed, suspend

__all__ = ["barrier", "get_pushpull_speed", "init", "join", "resume", "suspend"]


def init(
    comm: object = None, process_sets: object = None, lazy: bool = True, **settings: object
) -> None:
    """Joins the job; does nothing if this process has joined already.

    `comm` and `lazy` are Horovod's and BytePS' first argument. `comm` may list the ranks of the
    job, all of them; `lazy` changes nothing. `process_sets` are added at once. Settings given by
    name override the environment.
    """
    _joining.enter(comm, process_sets, settings)


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


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job of `num_workers` machines after suspend(), as its rank `global_rank`.

    As in BytePS a worker is a machine with as many ranks as this one had before suspend(), and
    `num_servers` summation servers must have joined before the job starts. `context` is accepted
    for compatibility. Raises ValueError without a suspend() before it.
    """
    _joining.resume(num_workers, num_servers, global_rank, init)
