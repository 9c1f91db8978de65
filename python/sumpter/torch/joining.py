"""Joining and leaving a job from torch, and what is known of it."""

from sumpter import _joining as joining
from sumpter._core import membership, names
from sumpter._core.membership import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    record_samples,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from sumpter._joining import get_pushpull_speed, suspend
from sumpter.torch import store
from sumpter.torch.functions import allgather_object

__all__ = [
    "cross_rank",
    "cross_size",
    "get_pushpull_speed",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "record_samples",
    "resume",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "suspend",
]


def init(
    comm: object = None, process_sets: object = None, lazy: bool = True, **settings: object
) -> None:
    """Joins the job; does nothing if this process has joined already.

    If the job has failed, or a rank has left it, all ranks join anew; there is no need to call
    shutdown() before. Process sets have to be added again then.

    `comm` and `lazy` are Horovod's and BytePS' first argument. `comm` may list the ranks of the
    job, all of them; `lazy` changes nothing. `process_sets` are added at once; more can be added
    later, whether it is "dynamic" or not. Settings given by name override the environment.
    """
    joining.enter(comm, process_sets, settings, store.board(settings))


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job of `num_workers` machines after suspend(), as its rank `global_rank`.

    As in BytePS a worker is a machine with as many ranks as this one had before suspend(), and
    `num_servers` summation servers must have joined before the job starts. `context` is accepted
    for compatibility. Raises ValueError without a suspend() before it.
    """
    joining.resume(num_workers, num_servers, global_rank, init)


def join(device: int = -1) -> int:
    """Waits until every rank has called this, for ranks that have less data than others.

    Meanwhile this rank contributes zeros to what the others begin; averages still divide by all
    ranks. In an allgather or alltoall it has no rows; a broadcast from it is an error on all ranks.
    Operations of its own must be done before. Returns the last rank to call this, the same
    on every rank. `device` changes nothing.
    """
    session = membership.current()
    last = session.out_of_data()
    # Ranks know of the calls that they have made themselves.
    known = names.forget(session)
    names.learn(session, allgather_object(known, name="names"))
    return last
