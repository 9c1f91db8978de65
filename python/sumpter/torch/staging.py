"""How a tensor on a device travels: in slices, through pinned host memory.

Each slice is copied to the host on a stream of our own, which first waits for what the caller's
current stream has been given; when it has arrived, a round of the core begins on the host memory;
when that is done, the slice is copied back on another stream of our own. So the copies of some
slices go on while others are in the network.

Two threads do what the caller must not wait for: one waits for slices to arrive in host memory, in
the order of the calls, and submits their rounds; the other starts the copies back. They end with
the session.
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

from sumpter import _native, _session
from sumpter._errors import ClosedError, DeadlineError
from sumpter._session import Session
from sumpter.torch import devices
from sumpter.torch.devices import Device, Event
from sumpter.torch.names import Identity

# Equal on all ranks, because each slice has a name of its own. A copy of this size takes a few
# hundred microseconds, far more than starting it; a small bucket of DDP still has several slices.
# Four partitions of the default size, so that slices do not cut partitions short.
SLICE_BYTES = 4 << 20

_log = logging.getLogger("sumpter")


def submit(
    session: Session,
    round_: _native.Round,
    identity: Identity,
    send: torch.Tensor | None,
    receive: torch.Tensor | None,
    priority: int,
) -> _session.Handle:
    """Submits a round on contiguous memory of a device, as `handles.submit` does on the host's.

    Up to SLICE_BYTES it is one round of the core; else each slice is one, and the first has the
    name of the whole, so that a rank whose tensor is not on a device is found to differ.
    """
    if round_.is_empty:
        return _session.Done()
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

    def submit(self, start: int, host: torch.Tensor) -> _session.Handle:
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
    target: torch.Tensor | None
    # When it has arrived in host memory; None if nothing is sent.
    arrived: Event | None


class StagedRound:
    """A round on a device's memory: a handle as the core's, done when all slices are."""

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
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._returned: Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._ready = device.mark(device.current())
        slices = self._copy_out(source, target)
        self._remaining = len(slices)
        for part in slices:
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
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._returned is not None:
            self._device.current().wait_event(self._returned)

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once from another thread when done; at once if it is done already."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def _copy_out(self, source: torch.Tensor | None, target: torch.Tensor | None) -> list[_Slice]:
        """Enqueues the copies to the host and returns all slices."""
        device, slices = self._device, []
        if source is not None:
            device.out.wait_event(self._ready)
        for start in range(0, self._whole.count, SLICE_BYTES):
            size = min(SLICE_BYTES, self._whole.count - start)
            part = _Slice(start, device.host_memory(size), None, None)
            if source is not None:
                device.copy(part.host, source.narrow(0, start, size), device.out)
                part.arrived = device.mark(device.out)
            if target is not None:
                part.target = target.narrow(0, start, size)
            slices.append(part)
        return slices

    def _begin(self, part: _Slice) -> None:
        """Submits a slice's round as soon as it is in host memory."""
        if part.arrived is not None:
            part.arrived.synchronize()
        # Even if another slice has failed: other ranks may wait for this one.
        native = self._whole.submit(part.start, part.host)
        native.on_done(lambda: self._come_home(part, native))

    def _come_home(self, part: _Slice, native: _session.Handle) -> None:
        try:
            self._lines.homeward.put(lambda: self._end(part, native), self._conclude)
        except ClosedError as error:
            self._conclude(error)

    def _end(self, part: _Slice, native: _session.Handle) -> None:
        """Enqueues the copy of a slice to the device, unless its round failed."""
        native.wait()
        device = self._device
        if part.target is not None and not self._done.is_set():
            # Where nothing was sent, nobody has waited yet for what uses the memory.
            device.back.wait_event(self._ready)
            device.copy(part.target, part.host, device.back)
        self._remaining -= 1
        if not self._remaining:
            self._returned = None if part.target is None else device.mark(device.back)
            self._conclude(None)

    def _conclude(self, error: BaseException | None) -> None:
        """Says that all is done or what went wrong; only the first call does anything."""
        with self._lock:
            if self._done.is_set():
                return
            self._error = error
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a callback of an operation failed")


class Line:
    """A thread that carries out actions in the order in which they came."""

    def __init__(self, name: str) -> None:
        self._actions: queue.SimpleQueue[tuple[_Action, _Failed] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, action: "_Action", failed: "_Failed") -> None:
        """Adds an action; `failed` is called with what it raises. ClosedError after close()."""
        with self._lock:
            if self._closed:
                raise ClosedError("Sumpter was shut down before the operation was done")
            self._actions.put((action, failed))

    def close(self) -> None:
        """Carries out what is left and ends the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._actions.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (item := self._actions.get()) is not None:
            action, failed = item
            try:
                action()
            except BaseException as error:
                # Whoever waits for the operation is told.
                failed(error)
            # What an action holds, such as memory, must not wait here for the next one.
            del item, action, failed


_Action = Callable[[], object]
_Failed = Callable[[BaseException], object]


class _Lines:
    """The two threads of a session."""

    def __init__(self) -> None:
        self.outward = Line("sumpter-copies-out")
        self.homeward = Line("sumpter-copies-back")

    @contextlib.contextmanager
    def around_close(self) -> Iterator[None]:
        """Lets the core finish all rounds before it ends, and copies back what it brings."""
        self.outward.close()
        try:
            yield
        finally:
            self.homeward.close()


_lock = threading.Lock()
_lines: weakref.WeakKeyDictionary[Session, _Lines] = weakref.WeakKeyDictionary()


def _of(session: Session) -> _Lines:
    """The threads of a session, started when they are first needed."""
    with _lock:
        lines = _lines.get(session)
        if lines is None:
            lines = _lines[session] = _Lines()
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
