"""The one membership of this process in a job, shared by every front.

The NumPy front, the torch front and the c10d backend each hold the session under a name of their
own; it opens with the first holder and closes with the last one, or when the interpreter exits.
A forked child starts without a session: its parent's threads do not exist in it.

Names matter: a tensor's name identifies it on all ranks and for the whole job, with one shape,
element type and operation. The session hands out names for operations that have none, in a
pattern that repeats, so that the number of names stays bounded however long a job runs.
"""

import atexit
import contextlib
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sumpter import _native, _seat
from sumpter._errors import DuplicateNameError, NotInitializedError, StartError
from sumpter._rendezvous import Board, is_elastic, job_name, meet

if TYPE_CHECKING:
    from sumpter.profiles import Profile

# How many operations of one description may be in flight before a new one queues behind the
# oldest: enough to keep a pipeline of collectives busy, few enough for a small tensor table.
UNNAMED_SLOTS = 8

_lock = threading.RLock()
_session: "Session | None" = None
_holders: set[str] = set()


class Handle(Protocol):
    """What both a native handle and `Done` offer."""

    def poll(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> None: ...
    def on_done(self, callback: Callable[[], object]) -> None: ...


class Done:
    """The handle of an operation on no elements: complete from the start."""

    def poll(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        return None

    def on_done(self, callback: Callable[[], object]) -> None:
        callback()


class Noted(NamedTuple):
    """A tensor that is summed."""

    shape: Sequence[int]
    dtype: str
    priority: int  # of its last round; higher goes first
    rounds: int  # begun since somebody wants to know


class Session:
    """An open membership: the native worker plus the names it has handed out."""

    def __init__(self, settings: dict[str, str], board: Callable[[], Board] | None) -> None:
        meeting = meet(settings, board)
        self.settings = settings
        self._coordinator = meeting.coordinator
        try:
            self.worker = _join(settings, meeting.settings)
        except BaseException:
            if self._coordinator is not None:
                self._coordinator.stop()
            raise
        self.rank = self.worker.rank
        self.world_size = self.worker.world_size
        self._counters: dict[str, int] = {}
        self._in_flight: dict[str, Handle] = {}
        self._scopes: dict[tuple[str, int], dict[str, object]] = {}
        # What is summed, while somebody wants to know.
        self.noted: dict[str, Noted] | None = None
        # What the model's layers take, if that was given to `tune`.
        self.profile: Profile | None = None
        # What went wrong with an operation whose caller had gone on without waiting for it.
        self.late: BaseException | None = None
        # What is entered before the worker finishes what is in flight, and left when it has.
        self.around_close: list[Callable[[], contextlib.AbstractContextManager[None]]] = []
        if self.rank == 0 and self.world_size > 1:
            self._let_tune()

    def _let_tune(self) -> None:
        """Begins the thread in which a tuner works, now or when somebody asks for one."""
        from sumpter.tuning.driver import Driver

        Driver(self).start()

    def close(self) -> None:
        """Leaves the job, then stops the embedded coordinator if there is one."""
        try:
            with contextlib.ExitStack() as around:
                for enter in self.around_close:
                    around.enter_context(enter())
                self.worker.shutdown()
        finally:
            if self._coordinator is not None:
                self._coordinator.stop()

    def abandon(self) -> None:
        """Keeps what works for it for ever: in a forked child, ending it would never return."""
        for native in (self.worker, self._coordinator, self.around_close):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))

    def submit(
        self,
        round_: _native.Round,
        name: str,
        *,
        send: int,
        receive: int,
        keep: object,
        priority: int = 0,
        tag: str = "",
        exclusive: bool = False,
    ) -> Handle:
        """Submits one round on the memory at two addresses, which `keep` holds.

        `exclusive` refuses a name whose last round is not done yet.
        """
        if exclusive:
            earlier = self._in_flight.get(name)
            if earlier is not None and not earlier.poll():
                raise DuplicateNameError(
                    f"an operation named {name!r} is still in flight on rank {self.rank}: "
                    "synchronize it first, or give the two different names"
                )
        if round_.is_empty:
            return Done()
        # Whoever wants to know is another thread, and may want so no longer at any time.
        noted = self.noted
        if noted is not None and round_.kind == "all_reduce":
            before = noted.get(name)
            rounds = before.rounds + 1 if before is not None else 1
            noted[name] = Noted(round_.shape, round_.dtype, priority, rounds)
        handle = self.worker.submit(round_, name, tag, send, receive, priority, keep)
        if exclusive:
            self._in_flight[name] = handle
        return handle

    def raise_late(self) -> None:
        """Raises, once, what went wrong with an operation whose caller had gone on."""
        if self.late is not None:
            late, self.late = self.late, None
            raise late.with_traceback(None)

    def barrier(
        self, name: str = "barrier", ranks: Sequence[int] | None = None, tag: str = ""
    ) -> Handle:
        """Starts a barrier; it is done when every participant has started it."""
        round_ = _native.Round("barrier", (1,), "uint8", ranks=ranks)
        return self.submit(round_, name, tag=tag, send=0, receive=0, keep=None)

    def out_of_data(self) -> int:
        """Takes part with zeros in what other ranks begin until all have called this.

        Returns the last rank to do so. Names count from 0 again, on all ranks, since each has
        counted what it has begun itself.
        """
        last = self.worker.out_of_data()
        self._counters.clear()
        return last

    def count(self, what: str) -> int:
        """How many times `what` has been counted before this call."""
        before = self._counters.get(what, 0)
        self._counters[what] = before + 1
        return before

    def unnamed(self, signature: str, slots: int = UNNAMED_SLOTS) -> str:
        """A name for an operation without one; the same on all ranks that call in one order."""
        return f"{signature}.{self.count(signature) % slots}"

    def scope(self, prefix: str, described: Mapping[str, object]) -> str:
        """A prefix under which every name in `described` is new or means the same as before.

        Two models may both call a parameter "0.weight"; the second gets another prefix, and a
        model that comes back gets its old one again.
        """
        for index in itertools.count():
            known = self._scopes.setdefault((prefix, index), {})
            if all(known.get(name, what) == what for name, what in described.items()):
                known.update(described)
                return prefix if index == 0 else f"{prefix}{index}."
        raise AssertionError("itertools.count() never ends")


def _join(given: dict[str, str], settings: dict[str, str]) -> _native.Worker:
    """Joins the job, or the next generation of an elastic one."""
    if not is_elastic(settings):
        return _native.Worker.join(settings)
    settings, seat = _seat.take(given, settings, job_name(settings))
    return _native.Worker.join(settings, seat)


def acquire(
    holder: str, settings: Mapping[str, object], board: Callable[[], Board] | None = None
) -> Session:
    """Opens the session, or joins the holders of the one that is open."""
    global _session
    texts = {name: _text(value) for name, value in settings.items() if value is not None}
    with _lock:
        if _session is None:
            _session = Session(texts, board)
        else:
            _check_same(_session, texts)
        _holders.add(holder)
        return _session


def release(holder: str) -> None:
    """Lets go of the session; the last holder's release closes it."""
    with _lock:
        _holders.discard(holder)
        if not _holders:
            _close()


def current() -> Session:
    """The open session, whoever opened it."""
    session = peek()
    if session is None:
        raise NotInitializedError("Sumpter is not initialized: call init() first")
    return session


def peek() -> Session | None:
    """The open session, or None."""
    return _session


def _check_same(session: Session, texts: dict[str, str]) -> None:
    """Refuses settings that the open session was not opened with, since they come too late."""
    actual = {"rank": str(session.rank), "world_size": str(session.world_size)}
    for name, text in texts.items():
        known = actual.get(name, session.settings.get(name))
        if known != text:
            raise StartError(
                f"Sumpter is initialized already with {name}={known!r}, not {text!r}: "
                "call shutdown() before init() with other settings"
            )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@atexit.register
def _close() -> None:
    global _session
    with _lock:
        session, _session = _session, None
        _holders.clear()
        if session is not None:
            session.close()


def _after_fork() -> None:
    global _session, _lock
    # Another thread may have held the lock when this process was forked.
    _lock = threading.RLock()
    session, _session = _session, None
    _holders.clear()
    if session is not None:
        session.abandon()


os.register_at_fork(after_in_child=_after_fork)
