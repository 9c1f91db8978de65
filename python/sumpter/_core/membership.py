"""The one membership of this process in a job, shared by every front.

Each front and each c10d process group holds the session under a name of its own. The session opens
with the first holder and closes with the last one, or when the interpreter exits. A forked child
starts without a session: its parent's threads do not exist in it.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping

from sumpter._assignments import setting_text
from sumpter._core.rendezvous import Board
from sumpter._core.session import Session
from sumpter._errors import NotInitializedError, StartError, SumpterError

# The name under which the fronts hold the session: init() of one and shutdown() of another match.
HOLDER = "api"

_log = logging.getLogger("sumpter")

_lock = threading.RLock()
_session: Session | None = None
_holders: set[str] = set()
# What waits for work of this process that needs the session before it closes.
before_close: list[Callable[[], object]] = []
# Of a tool that runs a script.
_preset: dict[str, object] = {}


def preset(settings: Mapping[str, object]) -> None:
    """Settings for whatever session opens from now on; those of who opens it come first."""
    _preset.clear()
    _preset.update(settings)


def acquire(
    holder: str, settings: Mapping[str, object], board: Callable[[], Board] | None = None
) -> Session:
    """Opens the session, or joins the holders of the one that is open."""
    global _session
    given = {**_preset, **settings}
    texts = {name: setting_text(value) for name, value in given.items() if value is not None}
    with _lock:
        if _session is None:
            _session = Session(texts, board)
        else:
            _check_same(_session, texts)
        _holders.add(holder)
        return _session


def join(settings: Mapping[str, object], board: Callable[[], Board] | None = None) -> Session:
    """Opens the session for the fronts; a new one if it is over with the job of the open one."""
    with _lock:
        if _session is not None and _session.is_over():
            _log.info("it is over with the job: joining anew")
            _close()
        return acquire(HOLDER, settings, board)


def release(holder: str) -> None:
    """Lets go of the session; the last holder's release closes it."""
    with _lock:
        _holders.discard(holder)
        if not _holders:
            _close()


def current() -> Session:
    """The open session; raises NotInitializedError without one."""
    session = _session
    if session is None:
        raise NotInitializedError("Sumpter is not initialized: call init() first")
    return session


def peek() -> Session | None:
    """The open session, or None."""
    return _session


def shutdown() -> None:
    """Leaves the job, unless a torch.distributed process group still uses it.

    What has gone wrong with the job before is no error here.
    """
    release(HOLDER)


def is_initialized() -> bool:
    """Whether this process is a member of a job."""
    return peek() is not None


def rank() -> int:
    """This worker's number in the job, from 0."""
    return current().rank


def size() -> int:
    """How many workers the job has."""
    return current().world_size


def local_rank() -> int:
    """This worker's number on its machine, from 0."""
    return current().worker.local_rank


def local_size() -> int:
    """How many workers of the job this machine has."""
    return current().worker.local_size


def barrier() -> None:
    """Returns when every worker has called it."""
    current().barrier().wait()


def record_samples(count: int) -> None:
    """Counts training samples for the live line of `sumpter run`; outside a job, does nothing."""
    session = peek()
    if session is not None:
        session.worker.record_samples(count)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes what this job's operations do to `file_path`, from now until stop_timeline().

    Rank 0 writes; on other ranks nothing happens. The file is in the trace format that Chrome
    (about:tracing) and Perfetto show: for each tensor the wait for its name to be known
    (NEGOTIATE_ALLREDUCE) and the operation itself. There are no cycles to mark. Raises OSError if
    the file cannot be written.
    """
    session = current()
    if session.rank == 0:
        session.worker.start_timeline(file_path)
        session.has_timeline = True


def stop_timeline() -> None:
    """Completes the file of start_timeline(), if there is one."""
    session = current()
    session.has_timeline = False
    session.worker.stop_timeline()


def cross_rank() -> int:
    """The number of this worker's machine, if every machine has equally many workers."""
    return rank() // local_size()


def cross_size() -> int:
    """The number of machines with workers, if every machine has equally many."""
    return -(-size() // local_size())


def check_root(session: Session, root_rank: int) -> None:
    """Raises ValueError unless `root_rank` is a rank of the job."""
    if not 0 <= root_rank < session.world_size:
        raise ValueError(f"root_rank is {root_rank}: it must be within 0..{session.world_size - 1}")


def _check_same(session: Session, texts: dict[str, str]) -> None:
    """Refuses settings that the open session was not opened with, since they come too late."""
    actual = {"rank": str(session.rank), "world_size": str(session.world_size)}
    for name, text in texts.items():
        known = actual.get(name, session.settings.get(name))
        if known != text:
            # Tokens are never shown.
            told = "another token" if name == "token" else f"{name}={known!r}, not {text!r}"
            raise StartError(
                f"Sumpter is initialized already with {told}: "
                "call shutdown() before init() with other settings"
            )


@atexit.register
def _close() -> None:
    global _session
    with _lock:
        if _session is not None:
            for settle in before_close:
                settle()
        session, _session = _session, None
        _holders.clear()
        if session is not None:
            try:
                session.close()
            except SumpterError as error:
                _log.warning("the job was over before it was left: %s", error)


def _after_fork() -> None:
    global _session, _lock
    # Another thread may have held the lock when this process was forked.
    _lock = threading.RLock()
    session, _session = _session, None
    _holders.clear()
    if session is not None:
        session.abandon()


os.register_at_fork(after_in_child=_after_fork)
