"""How a tensor on a device travels: in slices, through pinned host memory.

Each slice is copied to the host on a stream of our own, which first waits for what the caller's
current stream has been given; when it has arrived, a round of the core begins on the host memory;
when that is done, the slice is copied back on another stream of our own. So the copies of some
slices go on while others are in the network.

Two threads do what the caller must not wait for: one waits for slices to arrive in host memory, in
the order of the calls, and submits their rounds; the other starts the copies back. They end with
the session.

A caller can let its stream wait for the network, and go on. The copies back are enqueued at once
then, each behind a gate: a word in host memory, for which the stream waits and which is written
when the slice's round is over.
"""

import contextlib
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from sumpter import _native
from sumpter._core.names import Identity
from sumpter._core.session import Done, Handle, Session
from sumpter._errors import ClosedError, DeadlineError
from sumpter.torch import devices
from sumpter.torch.devices import Arrival, Device, Event, Gate

# Equal on all ranks, because each slice has a name of its own. A copy of this size takes a few
# hundred microseconds, far more than starting it; a small bucket of DDP still has several slices.
# Four partitions of the default size, so that slices do not cut partitions short.
SLICE_BYTES = 4 << 20

# How long a session that closes waits for the next tensor that is still being computed.
SEND_LAST_S = 60.0

# The part of a machine's memory that results may take for which streams wait.
PINNED_SHARE = 0.25

# In place of a result that there is not: no number in any floating-point format.
ALL_ONES = 0xFF

_log = logging.getLogger("sumpter")


def submit(
    session: Session,
    round_: _native.Round,
    identity: Identity,
    send: torch.Tensor | None,
    receive: torch.Tensor | None,
    priority: int,
) -> Handle:
    """Submits a round on contiguous memory of a device, as `handles.submit` does on the host's.

    Up to SLICE_BYTES it is one round of the core; else each slice is one, and the first has the
    name of the whole, so that a rank whose tensor is not on a device is found to differ.
    """
    if round_.is_empty:
        return Done()
    # What the root of a broadcast has sent need not come back to it.
    target = None if round_.kind == "broadcast" and send is not None else receive
    whole = _Whole(session, round_, identity, priority, send is not None, receive is not None)
    device = devices.of(send if receive is None else receive)
    return StagedRound(device, _of(session), whole, _bytes(send), _bytes(target))


@dataclass(frozen=True)
class _Whole:
    """The round as the caller sees it."""

    session: Session
    round_: _native.Round
    identity: Identity
    priority: int
    sends: bool
    receives: bool

    @property
    def count(self) -> int:
        """The size in bytes."""
        return torch.Size(self.round_.shape).numel() * self._element_bytes

    def submit(self, start: int, host: torch.Tensor) -> Handle:
        """Submits the slice that begins at byte `start` and lies in `host`."""
        round_, identity = self.round_, self.identity
        if len(host) < self.count:
            round_ = round_.reshaped((len(host) // self._element_bytes,))
        if start:
            identity = identity.part(f"slice.{start // SLICE_BYTES}")
        return self.session.submit(
            round_,
            identity.name,
            send=host.data_ptr() if self.sends else 0,
            receive=host.data_ptr() if self.receives else 0,
            keep=host,
            priority=self.priority,
            tag=identity.tag,
        )

    @property
    def _element_bytes(self) -> int:
        return getattr(torch, self.round_.dtype).itemsize


@dataclass
class _Slice:
    """A part of the device's memory and its place in host memory."""

    start: int
    host: torch.Tensor
    # Where the result goes; None if none comes back.
    target: torch.Tensor | None = None
    # When it has arrived in host memory; None if nothing is sent.
    arrived: Arrival | None = None
    # Whether its round is over. Once it is, the slice gets no gate any more.
    over: bool = False
    # What the copy back waits for, if it was enqueued before the round was over.
    gate: Gate | None = None


class StagedRound:
    """A round on a device's memory: a handle as the core's, done when all slices are.

    A copy back is enqueued when its round is over, or before, behind a gate, if the caller lets a
    stream wait for it. What opens a gate never calls the driver, which may itself wait for it.
    """

    def __init__(
        self,
        device: Device,
        lines: "_Lines",
        whole: _Whole,
        source: torch.Tensor | None,
        target: torch.Tensor | None,
    ) -> None:
        self._device = device
        self._lines = lines
        self._whole = whole
        self._changed = threading.Condition()
        self._done = threading.Event()
        self._error: BaseException | None = None
        # Whether anything is copied back, and when it is.
        self._returns = target is not None
        self._returned: Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        # Held while a caller's thread enqueues copies; those who open gates do not need it.
        self._enqueuing = threading.Lock()
        self._followed = False
        self._ready = device.mark(device.current())
        self._slices = self._copy_out(source, target)
        # Slices that somebody waits for: their copies back are not enqueued, or their gates shut.
        self._remaining = len(self._slices)
        # Of these, the slices whose rounds are over and that will be copied back in a moment.
        self._coming = 0
        for part in list(self._slices):
            lines.outward.put(lambda part=part: self._begin(part), self._conclude)

    def poll(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until the last copy back is enqueued, then the current stream until it is done.

        The calling thread waits for the network, but not for the device: what it enqueues in its
        current stream from now on sees the result. Raises what went wrong, or DeadlineError.
        """
        if not self._done.wait(timeout_s):
            raise DeadlineError(
                f"not done within {timeout_s:g} s; some rank has not contributed, or the device "
                "is busy with what was computed before"
            )
        self._raise_error()
        with self._enqueuing:
            self._order()

    def can_follow(self) -> bool:
        """Whether follow() can be called."""
        return self._device.follows

    def follow(self) -> None:
        """Lets the current stream wait for the result, and the calling thread for nothing.

        Raises what has gone wrong already. What goes wrong later is kept for the next call of the
        session, and the streams go on: in place of a slice that failed they find all ones, which
        is no number in any floating-point format.
        """
        with self._enqueuing:
            if self._returned is None and not self._done.is_set():
                self._enqueue_rest()
            self._raise_error()
            self._order()
        self._lines.keep_near()

    def give_up(self, error: BaseException) -> None:
        """Ends the membership in the job with `error`: streams that wait cannot be told otherwise.

        Everything in flight fails, so that nobody waits any longer.
        """
        self._conclude(error)
        self._whole.session.worker.shutdown()

    @property
    def error(self) -> BaseException | None:
        """What went wrong, if anything has so far."""
        return self._error

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once from another thread when done; at once if it is done already."""
        with self._changed:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def settle(self) -> None:
        """Blocks until the round is over, however it went."""
        self._done.wait()

    def _copy_out(self, source: torch.Tensor | None, target: torch.Tensor | None) -> list[_Slice]:
        """Enqueues the copies to the host and returns all slices."""
        device, slices = self._device, []
        if source is not None:
            device.out.wait_event(self._ready)
        for start in range(0, self._whole.count, SLICE_BYTES):
            size = min(SLICE_BYTES, self._whole.count - start)
            part = _Slice(start, device.host_memory(size))
            if source is not None:
                device.copy(part.host, source.narrow(0, start, size), device.out)
                part.arrived = device.arrival(device.out)
            if target is not None:
                part.target = target.narrow(0, start, size)
            slices.append(part)
        return slices

    def _begin(self, part: _Slice) -> None:
        """Submits a slice's round as soon as it is in host memory."""
        try:
            if part.arrived is not None:
                part.arrived.synchronize()
            # Even if another slice has failed: other ranks may wait for this one.
            native = self._whole.submit(part.start, part.host)
        except BaseException as error:
            self._end(part, error)
        else:
            native.on_done(lambda: self._end(part, _outcome(native)))

    def _end(self, part: _Slice, error: BaseException | None) -> None:
        """A slice's round is over: opens its gate, or has its result copied back."""
        with self._changed:
            part.over = True
            if part.gate is None and error is None:
                self._coming += 1
        if part.gate is not None:
            if error is not None:
                # First, so that who finds no numbers finds out why.
                self._conclude(error)
                part.host.fill_(ALL_ONES)
            part.gate.open()
            if error is None:
                self._count_down()
        elif error is not None:
            self._conclude(error)
        else:
            try:
                self._lines.homeward.put(lambda: self._come_home(part), self._conclude)
            except ClosedError as closed:
                self._conclude(closed)

    def _come_home(self, part: _Slice) -> None:
        """Enqueues the copy of a slice to the device, unless another slice has failed."""
        if part.target is not None and not self._done.is_set():
            self._copy_back(part)
        with self._changed:
            self._coming -= 1
            self._changed.notify_all()
        self._count_down()

    def _copy_back(self, part: _Slice) -> None:
        device = self._device
        # Where nothing was sent, nobody has waited yet for what uses the memory.
        device.back.wait_event(self._ready)
        if part.gate is not None:
            if part.arrived is not None:
                # The gate opens after this in any case. The driver must know, so that it does not
                # put the gate before it where streams share one of the device's queues.
                device.back.wait_event(part.arrived.passed)
            with device.using(device.back):
                part.gate.hold(device.back)
        device.copy(part.target, part.host, device.back)

    def _enqueue_rest(self) -> None:
        """Enqueues the copies back of all slices whose rounds are not over, behind gates."""
        # Before the lock, which those who open gates take: this may call the driver.
        gates = [self._device.gate() for part in self._slices if part.target is not None]
        with self._changed:
            rest = [part for part in self._slices if not part.over and part.target is not None]
            for part in rest:
                part.gate = gates.pop()
            self._followed = True
            if not self._done.is_set():
                self._lines.followed[self] = self._whole.count
        for gate in gates:
            gate.open()
        try:
            for part in rest:
                self._copy_back(part)
            with self._changed:
                # Those whose rounds were over; in a moment.
                self._changed.wait_for(lambda: not self._coming or self._error is not None)
            # Where nothing comes back, what was sent must not change before it is copied.
            device = self._device
            self._returned = device.mark(device.back if self._returns else device.out)
        except BaseException as error:
            self._conclude(error)

    def _count_down(self) -> None:
        """One slice less to wait for."""
        with self._changed:
            self._remaining -= 1
            if self._remaining:
                return
            marks = self._returns and not self._followed
        if marks:
            self._returned = self._device.mark(self._device.back)
        self._conclude(None)

    def _order(self) -> None:
        """Lets the current stream wait for the result."""
        if self._returned is not None:
            self._device.current().wait_event(self._returned)

    def _raise_error(self) -> None:
        """Raises what has gone wrong, if anything has; the caller knows of it then."""
        if self._error is not None:
            session = self._whole.session
            if session.late is self._error:
                session.late = None
            raise self._error.with_traceback(None)

    def _conclude(self, error: BaseException | None) -> None:
        """Says that all is done or what went wrong; only the first call does anything."""
        with self._changed:
            if self._done.is_set():
                return
            self._error = error
            if self._followed and error is not None:
                _log.error("an operation failed for which a stream of the device waits: %s", error)
                session = self._whole.session
                session.late = session.late or error
            self._done.set()
            self._lines.followed.pop(self, None)
            self._slices = []
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a callback of an operation failed")


def settle(session: Session) -> None:
    """Blocks until all that streams wait for is over, and raises what went wrong with it."""
    lines = _lines.get(session)
    for followed in lines.followed.copy() if lines is not None else ():
        followed.settle()
    session.raise_late()


def _outcome(native: Handle) -> BaseException | None:
    """What went wrong with a round that is over."""
    try:
        native.wait()
    except BaseException as error:
        return error
    return None


class Line:
    """A thread that carries out actions in the order in which they came."""

    def __init__(self, name: str) -> None:
        self._actions: queue.SimpleQueue[tuple[_Action, _Failed] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._carried_out = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, action: "_Action", failed: "_Failed") -> None:
        """Adds an action; `failed` is called with what it raises. ClosedError after close()."""
        with self._lock:
            if self._closed:
                raise ClosedError("Sumpter was shut down before the operation was done")
            self._actions.put((action, failed))

    def close(self, patience_s: float | None = None) -> None:
        """Carries out what is left and ends the thread.

        It is not waited for any more when it has carried out nothing for `patience_s`.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._actions.put(None)
        if threading.current_thread() is not self._thread:
            before = None
            while self._thread.is_alive() and self._carried_out != before:
                before = self._carried_out
                self._thread.join(patience_s)

    def _run(self) -> None:
        while (item := self._actions.get()) is not None:
            action, failed = item
            try:
                action()
            except BaseException as error:
                # Whoever waits for the operation is told.
                failed(error)
            self._carried_out += 1
            # What an action holds, such as memory, must not wait here for the next one.
            del item, action, failed


_Action = Callable[[], object]
_Failed = Callable[[BaseException], object]


class _Lines:
    """The two threads of a session."""

    def __init__(self, ranks_here: int) -> None:
        self.outward = Line("sumpter-copies-out")
        self.homeward = Line("sumpter-copies-back")
        # Rounds under way for which a stream waits, and no thread, in their order; their bytes.
        self.followed: dict[StagedRound, int] = {}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._followed_bytes = int(memory * PINNED_SHARE / ranks_here)

    def keep_near(self) -> None:
        """Waits for the oldest rounds if all that streams wait for takes too much memory.

        Nothing else keeps a thread that never looks at a result from being many steps ahead. All
        ranks begin what streams wait for in one order, so the oldest comes to its end.
        """
        followed = self.followed.copy()
        excess = sum(followed.values()) - self._followed_bytes
        for oldest, size in followed.items():
            if excess <= 0:
                break
            oldest.settle()
            excess -= size

    @contextlib.contextmanager
    def around_close(self) -> Iterator[None]:
        """Lets the core finish all rounds before it ends, and copies back what it brings."""
        # What is computed from a sum that never comes cannot be sent before the core gives it up.
        self.outward.close(SEND_LAST_S)
        try:
            yield
        finally:
            self.outward.close()
            self.homeward.close()


_lock = threading.Lock()
_lines: weakref.WeakKeyDictionary[Session, _Lines] = weakref.WeakKeyDictionary()


def _of(session: Session) -> _Lines:
    """The threads of a session, started when they are first needed."""
    with _lock:
        lines = _lines.get(session)
        if lines is None:
            lines = _lines[session] = _Lines(session.worker.local_size)
            session.around_close.append(lines.around_close)
        return lines


def _after_fork() -> None:
    global _lock
    # Another thread may have held the lock when this process was forked.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _bytes(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor's memory as flat bytes, unknown to autograd, as is what the core writes."""
    return None if tensor is None else tensor.data.view(-1).view(torch.uint8)
