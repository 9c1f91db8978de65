"""Joining a job from torch: init, shutdown, and the coordinator's address through torch's store."""

import concurrent.futures
import datetime
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch.distributed as dist

from sumpter import _environment
from sumpter._core import membership, names
from sumpter._core.membership import (
    is_initialized,
    local_rank,
    local_size,
    rank,
    record_samples,
    shutdown,
    size,
)
from sumpter._core.process_sets import adopt
from sumpter._core.rendezvous import Board, start_timeout_s
from sumpter._core.session import Session
from sumpter._errors import StartError, UnsupportedError
from sumpter.torch.functions import allgather_object

__all__ = [
    "StoreBoard",
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

_T = TypeVar("_T")
REPORT_EVERY_S = 5.0

_log = logging.getLogger("sumpter")


class StoreBoard:
    """A board on a torch store: rank 0 sets one key, the other ranks wait for it.

    The key counts the sessions of this process, which every rank opens equally often.
    """

    _sessions = 0

    def __init__(self, store: dist.Store) -> None:
        self._store = dist.PrefixStore("sumpter", store)
        self._key = f"coordinator.{StoreBoard._sessions}"
        StoreBoard._sessions += 1

    @property
    def host(self) -> str:
        store = self._store
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        # A store that is a file says nothing about the network.
        return getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "localhost")

    def post(self, text: str) -> None:
        self._store.set(self._key, text)

    def read(self, timeout_s: float) -> str:
        self._store.set_timeout(datetime.timedelta(seconds=timeout_s))
        what = "announce a coordinator in torch's store"
        return _patiently(lambda: self._store.get(self._key), timeout_s, what).decode()


def init(
    comm: object = None, process_sets: object = None, lazy: bool = True, **settings: object
) -> None:
    """Joins the job; does nothing if this process has joined already.

    `comm` and `lazy` are Horovod's and BytePS' first argument. `comm` may list the ranks of the
    job, all of them; `lazy` changes nothing. `process_sets` are added at once; more can be added
    later, whether it is "dynamic" or not. Settings given by name override the environment.
    """
    ranks = _listed(comm)
    fresh = not is_initialized()
    session = membership.acquire(membership.HOLDER, settings, _board(settings))
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


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """Joins a job of `num_workers` machines after suspend(), as its rank `global_rank`.

    As in BytePS a worker is a machine with as many ranks as this one had before suspend(), and
    `num_servers` summation servers must have joined before the job starts. `context` is accepted
    for compatibility. Raises ValueError without a suspend() before it.
    """
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


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes what this job's operations do to `file_path`, from now until stop_timeline().

    Rank 0 writes; on other ranks nothing happens. The file is in the trace format that Chrome
    (about:tracing) and Perfetto show: for each tensor the wait for its name to be known
    (NEGOTIATE_ALLREDUCE) and the operation itself. There are no cycles to mark. Raises OSError if
    the file cannot be written.
    """
    session = membership.current()
    if session.rank == 0:
        session.worker.start_timeline(file_path)


def stop_timeline() -> None:
    """Completes the file of start_timeline(), if there is one."""
    membership.current().worker.stop_timeline()


def cross_rank() -> int:
    """The number of this worker's machine, if every machine has equally many workers."""
    return rank() // local_size()


def cross_size() -> int:
    """The number of machines with workers, if every machine has equally many."""
    return -(-size() // local_size())


def _listed(comm: object) -> list[int] | None:
    """The ranks in Horovod's `comm`; None if there are none or if it is BytePS' `lazy`."""
    if comm is None or isinstance(comm, bool):
        return None
    if isinstance(comm, str) or not isinstance(comm, Iterable):
        raise UnsupportedError("init(comm=...) needs MPI; Sumpter has no communicators")
    ranks = sorted(int(rank) for rank in comm)
    # An empty list is Horovod's default.
    return ranks or None


def _board(settings: Mapping[str, object]) -> Callable[[], Board] | None:
    """Torch's store if there is one or if the environment says where to make one."""
    if dist.is_initialized():
        return lambda: StoreBoard(dist.distributed_c10d._get_default_store())
    given = {name: str(value) for name, value in settings.items() if value is not None}
    environment = _environment.read(given)
    if environment.master_host and environment.master_port:
        return lambda: StoreBoard(_environment_store(environment))
    return None


def _environment_store(environment: _environment.Understood) -> dist.Store:
    """The store that torchrun's agent serves, or else rank 0, where the launcher says."""
    host, port = environment.master_host, int(environment.master_port)
    from_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = not from_agent and environment.rank == "0"

    def connect() -> dist.TCPStore:
        # Torch tries twice, with a pause as long as a try in between.
        limit = datetime.timedelta(seconds=timeout_s / 3)
        return dist.TCPStore(
            host, port, None, serves, limit, wait_for_workers=False, multi_tenant=True
        )

    if (host, port) not in _stores:
        timeout_s = start_timeout_s()
        what = f"serve torch's store at {host}:{port}"
        _stores[host, port] = _patiently(connect, timeout_s, what)
    return _stores[host, port]


def _patiently(call: Callable[[], _T], timeout_s: float, what: str) -> _T:
    """Runs a call that blocks inside torch for up to `timeout_s`.

    It runs in a thread of its own, since Ctrl-C does not interrupt torch.
    """
    outcome: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="sumpter-rendezvous", daemon=True).start()
    start = time.monotonic()
    while True:
        try:
            return outcome.result(REPORT_EVERY_S)
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            raise StartError(
                f"rank 0 did not {what} within {timeout_s:g} s: is it running? "
                "(SUMPTER_START_TIMEOUT_S waits longer)"
            ) from error
        except TimeoutError:
            waited = time.monotonic() - start
            _log.warning("waiting for rank 0 to %s: %.0f s of %g s", what, waited, timeout_s)


# Rank 0 may serve the store from its own process: it has to outlive the other ranks' reading, and
# serves the next session as well.
_stores: dict[tuple[str, int], dist.Store] = {}

# The ranks of this machine between suspend() and resume().
_suspended: int | None = None

# The worker's seconds and bytes when get_pushpull_speed() was last called.
_speed_seen: weakref.WeakKeyDictionary[Session, tuple[float, float]] = weakref.WeakKeyDictionary()
