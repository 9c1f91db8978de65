"""Host staging: rounds on a device's memory through pinned host memory, slice by slice.

A round of the core begins at once on host memory as large as the tensor. Each slice is copied to
the host on a stream for such copies, which first waits for what the caller's current stream has
been given; when it has arrived, it is supplied to the round, which sends what it has. When all of a
slice's result is final, it is copied back on a second stream. So the copies of some slices overlap
with the communication of others.

Two threads do what the caller must not wait for: one waits for slices to arrive in host memory, in
the order of the calls, and supplies them; the other starts the copies back. They end with the
session.

A caller can let its stream wait for the network, and go on. The copies back are enqueued at once
then, each behind a gate: a word in host memory, for which the stream waits and which the core
writes when the slice is final. Nor does it take a thread of Python to supply what has arrived,
where streams can wait: one that calls the driver, or frees what the driver knows of, may be stuck
behind another that waits for such a stream, and hold the interpreter meanwhile.

A round of a device group moves only this rank's shard through host memory: before that, the
devices of the group reduce their tensors, and after it they gather the result. A round of a rank
without a group is one of a group of one.

A round of a variable sends a gradient and receives a value, which go to different memory: its value
has host memory of its own. The result of a round may also stay in host memory.

What a device has to offer is in streams.py.
"""

import contextlib
import ctypes
import functools
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sumpter._core.action_queue import Action, ActionQueue
from sumpter._core.device_order import GATHER, REDUCE
from sumpter._core.handles import Done, RoundHandle
from sumpter._core.session import Session
from sumpter._core.streams import Arrival, Device, DeviceGroup, Event, Gate, HostMemory
from sumpter._core.tensor import Tensor
from sumpter._errors import ClosedError, DeadlineError, PeerLostError
from sumpter._native import Arrival as Point
from sumpter._native import Decision, GateWatch, Supply
from sumpter._native import Handle as NativeHandle

# A copy of this size takes a few hundred microseconds, far more than starting it; a small bucket of
# DDP still has several slices. Many partitions, so that few wait for a second slice.
SLICE_BYTES = 4 << 20

# How long a session that closes waits for the next tensor that is still being computed.
SEND_LAST_S = 60.0

# How long the next operation waits for the error of one before it, whose failure streams have seen.
# It is on its way, and only a thread that must call this itself could wait in vain.
FAILURE_KNOWN_S = 5.0

# The part of a machine's memory that results may take for which streams wait.
PINNED_SHARE = 0.25

# In place of a result that there is not: no number in any floating-point format.
ALL_ONES = 0xFF

_log = logging.getLogger("sumpter")


def stage(
    tensor: Tensor,
    device: Device,
    send: Any | None,
    receive: Any | None,
    priority: int = 0,
    tag: str = "",
    update: Sequence[float] | None = None,
    order: Sequence[tuple[int, int, int, int]] | None = None,
    group: DeviceGroup | None = None,
    rescale: float = 1.0,
) -> RoundHandle:
    """Starts a round on contiguous memory of a device, as `Tensor.submit` does on the host's.

    What is received may stay in the host's, if `receive` is `HostMemory`. The devices of `group`
    reduce and gather a tensor that is sharded; None for a group of one.
    """
    if not math.prod(tensor.description.shape):
        return Done()
    exchange = None
    if group is not None:
        exchange = Exchange(tensor, group, send, receive, priority, tag)
        send = receive = exchange.shard
    staged = DeviceRound(tensor.session, device, _target(tensor, send, receive), exchange)
    submit = functools.partial(tensor.submit_staged, update=update, order=order, rescale=rescale)
    staged.start(submit, tensor, send, receive, priority, tag)
    return staged


def stage_deferred(
    tensor: Tensor, device: Device, send: Any, receive: Any, priority: int = 0, tag: str = ""
) -> tuple[RoundHandle, Decision | None]:
    """Starts a round as stage() does, as `Tensor.submit_deferred` does on the host's memory."""
    if not tensor.bytes:
        return Done(), None
    staged = DeviceRound(tensor.session, device, _target(tensor, send, receive))
    submit = tensor.submit_staged_deferred
    (decision,) = staged.start(submit, tensor, send, receive, priority, tag)
    return staged, decision


def _target(tensor: Tensor, send: Any | None, receive: Any | None) -> Any | None:
    """The memory of the device into which the result comes, if it comes there."""
    # What the root of a broadcast has sent need not come back to it.
    is_root = tensor.description.collective == "broadcast" and send is not None
    return None if is_root or isinstance(receive, HostMemory) else receive


@dataclass
class _Slice:
    """A part of the device's memory, and of the host memory for all of the result."""

    index: int
    host: HostMemory
    start: int
    size: int
    # When it has arrived in host memory; None if nothing is sent. The point supplies it.
    arrived: Arrival | None = None
    point: Point | None = None
    # Whether its result is final, or has failed, as far as a thread of Python knows.
    over: bool = False
    # What the copy back waits for, if it was enqueued before the core had the slice's result.
    gate: Gate | None = None


class DeviceRound:
    """A round on a device's memory: a handle as the core's, done when all slices are.

    A copy back is enqueued when the slice is final, or before, behind a gate, if the caller lets a
    stream wait for it.
    """

    def __init__(
        self,
        session: Session,
        device: Device,
        target: Any | None,
        exchange: "Exchange | None" = None,
    ) -> None:
        self._session = session
        self._device = device
        self._exchange = exchange
        self._queues = _queues_of(session)
        self._changed = threading.Condition()
        self._done = threading.Event()
        self._error: BaseException | None = None
        # What is copied back into until then, whether anything is, and when it has been.
        self._target = target
        self._returns = target is not None
        self._returned: Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        # Held while a caller's thread enqueues copies; what opens gates does not need it.
        self._enqueuing = threading.Lock()
        self._stream_waits = False
        self._spans: list[tuple[int, int, int, int]] = []

    def start(
        self,
        submit: Callable[..., tuple[Any, ...]],
        tensor: Tensor,
        source: Any | None,
        receive: Any | None,
        priority: int,
        tag: str,
    ) -> list[Any]:
        """Enqueues the copies to the host, begins the round by `submit`, and has it supplied.

        Returns what `submit` returns after the core's round and its supply.
        """
        self._size = tensor.bytes
        self._ready = self._device.mark(self._device.current())
        sent, received = self._host_memory(tensor, source, receive)
        slices = self._slices = [
            _Slice(index, received, start, min(SLICE_BYTES, self._size - start))
            for index, start in enumerate(range(0, self._size, SLICE_BYTES))
        ]
        exchange = self._exchange
        # A round that changes a variable asynchronously has an order, known at its end.
        self._is_ordered = tensor.description.staleness != 0
        # Slices to wait for: their copies back are not enqueued, or their gates shut.
        self._remaining = len(slices) + self._is_ordered + (exchange is not None)
        # Slices whose copies back are neither enqueued nor to be so behind gates.
        self._returning = len(slices) if self._returns else 0
        round_, supply, *more = submit(
            sent.address if source is not None else 0,
            received.address if receive is not None else 0,
            keep=(sent, received),
            slice_bytes=SLICE_BYTES,
            on_slice=lambda index: self._end(slices[index]),
            priority=priority,
            tag=tag,
        )
        # Until the end: it is of the core's round, which holds on to this object.
        self._supply: Supply | None = supply
        if exchange is not None:
            reduced = functools.partial(self._reduced, slices, source, sent, supply)
            exchange.begin(self._ready, reduced, self._gathered, self._conclude)
            exchange.await_computed(self._device)
        elif source is not None:
            try:
                self._copy_to_host(slices, source, sent, self._ready, supply)
            except BaseException as error:
                self._refuse(supply, error)
                raise
        round_.on_done(lambda: self._end_round(slices, round_, supply))
        return more

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

    def streams_wait(self) -> bool:
        """Whether wait_on_stream() can be called.

        Not in a group: its collectives are launched when all ranks have what they gather, and a
        stream that waits for a launch could keep the launch waiting.
        """
        return self._device.streams_wait and self._exchange is None

    def wait_on_stream(self) -> None:
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
        self._queues.limit_run_ahead()

    def abort(self, error: BaseException) -> None:
        """Ends the membership in the job with `error`: nothing else releases waiting streams.

        Everything in flight fails.
        """
        self._conclude(error)
        self._session.worker.shutdown()

    @property
    def error(self) -> BaseException | None:
        """What went wrong, if anything has so far."""
        return self._error

    def order(self) -> list[tuple[int, int, int, int]]:
        """When a round that is done has changed a variable asynchronously; of others nothing."""
        return self._spans

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

    def _host_memory(
        self, tensor: Tensor, source: Any | None, receive: Any | None
    ) -> tuple[HostMemory, HostMemory]:
        """What is sent from and received into; the same, but for what must not share it."""
        if isinstance(receive, HostMemory):
            self._pinned = self._size
            return self._device.host_memory(self._size), receive
        sent = self._device.host_memory(self._size)
        # A gradient may be needed again, after a failover, when parts of the value are there.
        is_update = tensor.description.collective == "update"
        received = self._device.host_memory(self._size) if is_update else sent
        self._pinned = self._size * (1 + is_update)
        return sent, received

    def _copy_to_host(
        self, slices: list[_Slice], source: Any, sent: HostMemory, after: Event, supply: Supply
    ) -> None:
        """Enqueues the copies to the host, and has slices supplied to the round as they arrive."""
        device, stream = self._device, self._device.device_to_host
        stream.wait_event(after)
        for part in slices:
            device.copy_to_host(sent, source, part.start, part.size, stream)
            part.point = supply.arrival(part.start, part.size)
            part.arrived = device.arrival(stream, part.point)
            self._queues.to_host.put(functools.partial(self._await, part, supply), self._fail)

    def _reduced(
        self, slices: list[_Slice], source: Any, sent: HostMemory, supply: Supply, after: Event
    ) -> None:
        """The group's devices reduce, until `after`: this rank's shard can go to the host."""
        self._copy_to_host(slices, source, sent, after, supply)
        if not slices:
            # The core's round of a rank without a shard lasts until then.
            supply.supply(0, 0)
        self._count_down()

    def _gathered(self, after: Event) -> None:
        """The group's devices gather the result, until `after`."""
        self._returned = after
        self._conclude(None)

    def _await(self, part: _Slice, supply: Supply) -> None:
        """Waits until a slice is in host memory, where it is supplied, or the device has failed."""
        assert part.arrived is not None and part.point is not None
        try:
            part.arrived.synchronize()
        except BaseException as error:
            self._refuse(supply, error)
            self._end_in_vain(part, error, supply)
        else:
            # Where the device has not done so.
            part.point.happen()

    def _refuse(self, supply: Supply, error: BaseException) -> None:
        """Other ranks wait for this one's contribution, which will never come."""
        supply.refuse(f"rank {self._session.rank} cannot read its device's memory: {error}")

    def _end_round(self, slices: list[_Slice], round_: NativeHandle, supply: Supply) -> None:
        """The round is over; if it went well, every slice that is received was ended before."""
        error = _outcome(round_)
        if error is not None:
            for part in slices:
                if not part.over:
                    self._end_in_vain(part, error, supply)
            if self._exchange is not None:
                self._exchange.core_fails(error)
            elif self._is_ordered:
                # Also where every slice is final, and only the order is lacking.
                self._conclude(error)
            return
        if self._is_ordered:
            self._spans = round_.order()
        if not self._returns:
            self._conclude(None)
        elif self._is_ordered:
            self._put_to_device(self._count_down)

    def _end(self, part: _Slice) -> None:
        """A slice is final, and its gate is open, if it has one: else has it copied back."""
        with self._changed:
            part.over = True
        if part.gate is None:
            self._put_to_device(lambda: self._return(part))
        else:
            part.gate.opened()
            self._count_down()

    def _end_in_vain(self, part: _Slice, error: BaseException, supply: Supply) -> None:
        """A slice has failed: opens its gate, unless the core has done so."""
        with self._changed:
            part.over = True
        # First, so that the cause is known where no number is found.
        self._fail(error)
        if part.gate is None:
            return
        if supply.release(part.index):
            ctypes.memset(part.host.address + part.start, ALL_ONES, part.size)
            part.gate.open()
        else:
            part.gate.opened()
            self._queues.failure_is_known()

    def _put_to_device(self, action: Action) -> None:
        """Has the thread for copies to the device do something, since it may call the driver."""
        try:
            self._queues.to_device.put(action, self._fail)
        except ClosedError as closed:
            self._fail(closed)

    def _return(self, part: _Slice) -> None:
        """Enqueues the copy of a slice to the device, unless another slice has failed."""
        target = self._target
        if target is not None and not self._done.is_set():
            self._copy_to_device(part, target)
        with self._changed:
            self._returning -= 1
            self._changed.notify_all()
        self._count_down()

    def _copy_to_device(self, part: _Slice, target: Any) -> None:
        device = self._device
        stream = device.host_to_device
        # Where nothing was sent, nothing has waited yet for what uses the memory.
        stream.wait_event(self._ready)
        if part.gate is not None:
            if part.arrived is not None:
                # The gate opens after this in any case. The driver must know, so that it does not
                # put the gate before it where streams share one of the device's queues.
                stream.wait_event(part.arrived.passed)
            device.hold(stream, part.gate)
        device.copy_to_device(target, part.host, part.start, part.size, stream)

    def _enqueue_rest(self) -> None:
        """Enqueues the copies back of all slices that are not final, behind gates."""
        target = self._target
        slices = self._slices if target is not None else []
        # Before the lock, which is taken to open gates: this may call the driver.
        gates = [self._device.gate() for _ in slices]
        watch = self._queues.watch
        with self._changed:
            rest = []
            for part in slices if (supply := self._supply) is not None else ():
                memory = part.host.address + part.start, part.size
                if not part.over and supply.hold(part.index, memory, gates[-1].word, watch):
                    part.gate = gates.pop()
                    rest.append(part)
            self._returning -= len(rest)
            self._stream_waits = True
            if not self._done.is_set():
                self._queues.awaited[self] = self._pinned
        for gate in gates:
            gate.open()
        try:
            for part in rest:
                self._copy_to_device(part, target)
            with self._changed:
                # Those that were final; in a moment.
                self._changed.wait_for(lambda: not self._returning or self._error is not None)
            # Where nothing comes back, what was sent must not change before it is copied.
            device = self._device
            stream = device.host_to_device if self._returns else device.device_to_host
            self._returned = device.mark(stream)
        except BaseException as error:
            self._conclude(error)

    def _count_down(self) -> None:
        """One slice less to wait for."""
        with self._changed:
            self._remaining -= 1
            if self._remaining:
                return
            marks = self._returns and not self._stream_waits
        returned = self._device.mark(self._device.host_to_device) if marks else None
        if self._exchange is not None and returned is not None:
            self._exchange.ready_to_gather(returned)
            return
        self._returned = self._returned if returned is None else returned
        self._conclude(None)

    def _order(self) -> None:
        """Lets the current stream wait for the result."""
        if self._returned is not None:
            self._device.current().wait_event(self._returned)

    def _raise_error(self) -> None:
        """Raises what has gone wrong, if anything has; the next call need not raise it then."""
        if self._error is not None:
            # The memory may be used again after collectives that were launched before.
            self._order()
            if self._session.late is self._error:
                self._session.late = None
            raise self._error.with_traceback(None)

    def _fail(self, error: BaseException) -> None:
        """Something went wrong here: with a group once all of its ranks know."""
        if self._exchange is not None:
            self._exchange.fail(error)
        else:
            self._conclude(error)

    def _conclude(self, error: BaseException | None) -> None:
        """Says that all is done or what went wrong; only the first call does anything."""
        with self._changed:
            if self._done.is_set():
                return
            self._error = error
            if error is not None and self._exchange is not None:
                self._returned = self._exchange.launched
            if self._stream_waits and error is not None:
                _log.error("an operation failed for which a stream of the device waits: %s", error)
                self._session.late = self._session.late or error
            self._done.set()
            self._queues.awaited.pop(self, None)
            self._slices, self._target, self._supply = [], None, None
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a callback of an operation failed")


class Exchange:
    """The collectives of a round on the devices of its group, launched in the group's order.

    `shard` is the part of what is received that this rank has reduced, and moves through the host's
    memory: the collectives need no memory of their own, and change only what is received.
    """

    def __init__(
        self,
        tensor: Tensor,
        group: DeviceGroup,
        source: Any,
        receive: Any,
        priority: int,
        tag: str,
    ) -> None:
        link = tensor.session.device_link
        assert link is not None and tensor.shard is not None and tensor.shards is not None
        self._link = link
        described = tensor.description
        self._tensor = tensor
        self._group = group
        self._memory: tuple[Any, Any] | None = (source, receive)
        self._parts = [(start, size) for _, start, size in tensor.shards]
        self._what = f"{described.dtype} {described.op} {described.shape}"
        self._priority = priority
        self._tag = tag
        self.shard = group.part(receive, *tensor.shard)
        # The end of what has been launched.
        self.launched: Event | None = None
        # Whether other ranks need not be told that this one does not contribute.
        self._contributed = False

    def begin(
        self,
        ready: Event,
        reduced: Callable[[Event], None],
        gathered: Callable[[Event], None],
        conclude: Callable[[BaseException], None],
    ) -> None:
        """Takes its place among the group's rounds.

        `reduced` and `gathered` are called when the collectives have been enqueued, with their end;
        the first comes after `ready`. `conclude` is called instead when one of them never will be.
        """
        self._after = ready
        self._reduced, self._gathered, self._conclude = reduced, gathered, conclude
        self._operation = self._link.begin(self._tensor.name, self._what, self)

    def await_computed(self, device: Device) -> None:
        """Is ready for the first collective when the caller's current stream has come so far."""
        arrival = device.arrival(device.current())

        def ready() -> None:
            arrival.synchronize()
            self._link.ready(self._operation, REDUCE, self._priority, self._tag)

        self._link.computed.put(ready, self.fail)

    def ready_to_gather(self, returned: Event) -> None:
        """The result of this rank's shard is on the device after `returned`."""
        self._after = returned
        self._link.ready(self._operation, GATHER, self._priority)

    def launch(self, stage: str) -> None:
        group, memory = self._group, self._memory
        if memory is None:
            return
        source, receive = memory
        described = self._tensor.description
        group.stream.wait_event(self._after)
        if stage == REDUCE:
            group.reduce_scatter(source, receive, self._parts, described.dtype, described.op)
        else:
            group.all_gather(receive, self._parts, described.dtype)
        self.launched = group.mark()
        self._link.watch(group.arrival().synchronize)
        if stage == REDUCE:
            self._contributed = True
            self._reduced(self.launched)
        else:
            self._memory = None
            self._gathered(self.launched)

    def fail(self, error: BaseException) -> None:
        """The round has failed on this rank."""
        self._link.fail(self._operation, error)

    def core_fails(self, error: BaseException) -> None:
        """The round has failed on all ranks that take part in it."""
        self._contributed = True
        self.fail(error)

    def conclude(self, error: BaseException) -> None:
        if not self._contributed and not isinstance(error, (PeerLostError, ClosedError)):
            # Ranks of other groups wait for it, and the core knows only of ranks that are gone.
            self._tensor.refuse(f"rank {self._tensor.session.rank} cannot contribute: {error}")
        self._memory = None
        self._conclude(error)


def settle(session: Session) -> None:
    """Blocks until all that streams wait for is over, and raises what went wrong with it."""
    catch_up(session)
    session.raise_late()


def catch_up(session: Session) -> None:
    """Blocks until all that streams wait for is over, however it went."""
    queues = _queues.get(session)
    for awaited in queues.awaited.copy() if queues is not None else ():
        awaited.settle()


def _outcome(round_: RoundHandle) -> BaseException | None:
    """What went wrong with a round that is over."""
    try:
        round_.wait()
    except BaseException as error:
        return error
    return None


class _CopyQueues:
    """The two threads of a session."""

    def __init__(self, ranks_here: int) -> None:
        self.to_host = ActionQueue("sumpter-copies-to-host")
        self.to_device = ActionQueue("sumpter-copies-to-device")
        # Rounds under way for which a stream waits, and no thread, in their order; their bytes.
        self.awaited: dict[DeviceRound, int] = {}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._awaited_bytes = int(memory * PINNED_SHARE / ranks_here)
        # Gates that the core has opened since rounds failed, and of how many the error is known.
        self.watch = GateWatch()
        self._known = 0
        self._told = threading.Condition()

    def failure_is_known(self) -> None:
        """Of one more gate that the core has opened in vain."""
        with self._told:
            self._known += 1
            self._told.notify_all()

    def await_failures(self) -> None:
        """Waits until the errors of all such gates are known: streams may have seen the results."""
        if self.watch.failed != self._known:
            with self._told:
                known = self._told.wait_for(
                    lambda: self.watch.failed <= self._known, FAILURE_KNOWN_S
                )
            if not known:
                _log.warning("an operation failed for which a stream waits; why is not known yet")

    def limit_run_ahead(self) -> None:
        """Waits for the oldest rounds if all that streams wait for takes too much memory.

        Nothing else keeps a thread that never looks at a result from being many steps ahead. All
        ranks begin what streams wait for in one order, so the oldest comes to its end.
        """
        awaited = self.awaited.copy()
        excess = sum(awaited.values()) - self._awaited_bytes
        for oldest, size in awaited.items():
            if excess <= 0:
                break
            oldest.settle()
            excess -= size

    @contextlib.contextmanager
    def around_close(self) -> Iterator[None]:
        """Lets the core finish all rounds before it ends, and copies back what it brings."""
        # What is computed from a sum that never comes cannot be sent before the core gives it up.
        self.to_host.close(SEND_LAST_S)
        try:
            yield
        finally:
            self.to_host.close()
            self.to_device.close()


_lock = threading.Lock()
_queues: weakref.WeakKeyDictionary[Session, _CopyQueues] = weakref.WeakKeyDictionary()


def _queues_of(session: Session) -> _CopyQueues:
    """The threads of a session, started when they are first needed."""
    with _lock:
        queues = _queues.get(session)
        if queues is None:
            queues = _queues[session] = _CopyQueues(session.worker.local_size)
            session.around_close.append(queues.around_close)
            session.await_failures = queues.await_failures
        return queues


def _after_fork() -> None:
    global _lock
    # Another thread may have held the lock when this process was forked.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
