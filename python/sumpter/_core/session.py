"""An open membership in a job: the native worker, and the names that operations have.

A tensor's name identifies it on all ranks and for the whole job, with one shape, element type and
operation. The session hands out names for operations that have none, in a pattern that repeats, so
that the number of names stays bounded however long a job runs.
"""

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sumpter import _native
from sumpter._core import seat
from sumpter._core.rendezvous import Board, is_elastic, job_name, meet
from sumpter._errors import DuplicateNameError

if TYPE_CHECKING:
    from sumpter.profiles import Profile

# How many operations of one description may be in flight before a new one queues behind the
# oldest: enough to keep a pipeline of collectives busy, few enough for a small tensor table.
UNNAMED_SLOTS = 8


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
    settings, place = seat.take(given, settings, job_name(settings))
    return _native.Worker.join(settings, place)
