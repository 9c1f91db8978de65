"""The Work objects that the c10d backend returns.

Three properties of torch 2.14 and 2.15 shape this file:
- only a Work that overrides wait() raises the error of a failed operation;
- a future fails in a way that C++ (DDP's reducer) can see only if a `then` callback raises, so
  get_future() returns such a callback's future and never calls set_exception();
- the reducer waits on that future without a limit, so a group's timeout must be enforced here.

Futures are completed by threads of the group's callback queue, in the order in which they were
asked for: callbacks of futures may begin collectives, which ranks match by their order, and may
wait for them.

Where the tensors are on a device, torch runs that callback in a stream of its own, which it orders
after what was there when the future was completed, and a waiter for the callback's future
after what the callback has enqueued. Waiting for the rounds there, which orders the current
stream, is therefore all that is needed. If streams can wait for the network by themselves, the
future is complete at once.
"""

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from sumpter._core.deadlines import deadlines
from sumpter._core.handles import Done, RoundHandle
from sumpter._core.staging import DeviceRound
from sumpter._errors import DeadlineError, MismatchError, SumpterError
from sumpter.torch import devices
from sumpter.torch.c10d.own_work import OwnWork
from sumpter.torch.devices import Event

if TYPE_CHECKING:
    from sumpter.torch.c10d.collective import Group


class SumpterWork(OwnWork):
    """One collective: the rounds it consists of, and what remains to do when they are done."""

    # A collective on few bytes costs as much as the Python that begins it. So what most collectives
    # leave as it is belongs to the class, and what only some callers need is made when they ask.
    _opts: Any = None
    # Works for collectives to come, made while there is something to wait for.
    spares: "ClassVar[list[SumpterWork] | None]" = None
    _over: "Completion | None" = None
    _future: torch.futures.Future | None = None
    _staged: list[DeviceRound] | None = None
    # What remains to do when the rounds are done, if there is a lock for doing it once.
    _after: Sequence[Callable[[], object]] = ()
    _finishing: "threading.Lock | None" = None
    _is_finished = False
    _finished: Event | None = None

    def begin(
        self, group: "Group", label: str, outputs: list[torch.Tensor], rounds: list[RoundHandle]
    ) -> "SumpterWork":
        """Sets what every collective has; `label` is the collective as messages show it."""
        self._group = group
        self._label = label
        self._outputs = outputs
        self._rounds = rounds
        self._begun = time.monotonic()
        self._group_timeout_s = group.timeout_s
        if outputs and not outputs[0].is_cpu:
            self._finishing = threading.Lock()
        return self

    @property
    def label(self) -> str:
        """The collective and its group as messages show them."""
        return self._group.shown(self._label)

    @property
    def _timeout_s(self) -> float:
        given_s = 0.0 if self._opts is None else self._opts.timeout.total_seconds()
        return given_s if given_s > 0 else self._group_timeout_s

    @property
    def _deadline(self) -> float:
        return self._begun + self._timeout_s

    @property
    def _on_stream(self) -> list[DeviceRound]:
        """The rounds for which streams can wait, and no thread, if that is so for all."""
        if self._staged is None:
            staged = []
            if self._group.streams_wait and self._outputs and not self._outputs[0].is_cpu:
                staged = [handle for handle in self._rounds if not isinstance(handle, Done)]
            wait = all(isinstance(each, DeviceRound) and each.streams_wait() for each in staged)
            self._staged = staged if wait else []
        return self._staged

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Blocks until the collective is done; raises if it failed or took too long.

        Of tensors on a device the current stream waits for the result, and the calling thread does
        not: what goes wrong after that is raised by the next call. With a `timeout`, or with the
        setting `blocking_wait`, it waits until the last copy has been enqueued.
        """
        given_s = timeout.total_seconds()
        if given_s > 0:
            self._complete(time.monotonic() + given_s, f"{given_s:g} s")
        elif self._finishing is not None and self._on_stream:
            self._wait_on_stream()
        else:
            self._complete(self._deadline)
        return True

    def is_completed(self) -> bool:
        return all(handle.poll() for handle in self._rounds)

    def has_failed(self) -> bool:
        """Whether all rounds are done, and one with an error."""
        if not self.is_completed():
            return False
        try:
            for handle in self._rounds:
                handle.wait(0.0)
        except SumpterError:
            return True
        return False

    def is_settled(self) -> bool:
        """Whether all rounds are done, or the deadline has passed."""
        return self.is_completed() or time.monotonic() >= self._deadline

    def on_settled(self, callback: Callable[[], object]) -> None:
        """Calls `callback`, which must not block, when is_settled()."""
        Completion(self._rounds, self._deadline, lambda _: callback())

    def settle(self) -> None:
        """Blocks until is_settled()."""
        for handle in self._rounds:
            if not handle.poll():
                _wait_until(handle, self._deadline)

    def check(self) -> None:
        """Raises what went wrong, when is_settled()."""
        self._complete(min(self._deadline, time.monotonic()))

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs

    def make_future(self) -> torch.futures.Future:
        if self._future is None:
            done = torch.futures.Future(devices=devices.for_futures(self._outputs))
            self._future = done.then(lambda _: self._value())
            alone = self._group.size == 1 and self.is_completed()
            if self._on_stream or alone:
                done.set_result(None)
            else:
                self._group.callbacks.add(self.settle, lambda: done.set_result(None))
        return self._future

    def _value(self) -> list[torch.Tensor]:
        # Called when nothing has to be waited for: streams do it, every round is done, or the
        # deadline has passed.
        if self._on_stream:
            self._wait_on_stream()
        else:
            self.check()
        return self._outputs

    def _wait_on_stream(self) -> None:
        """Lets the current stream wait for the rounds."""
        assert self._finishing is not None
        with self._finishing:
            if self._over is None:
                self._over = Completion(self._on_stream, self._deadline, self._check)
        try:
            for handle in self._on_stream:
                handle.wait_on_stream()
        except MismatchError:
            self._disagreed()
            raise
        self._finish_once()

    def _check(self, late: bool) -> None:
        """Looks at the outcome of rounds for which only streams wait."""
        for handle in self._on_stream:
            if late:
                limit = f"{self._timeout_s:g} s, the timeout of the process group"
                handle.abort(DeadlineError(f"{self.label} was not complete after {limit}"))
            elif isinstance(handle.error, MismatchError):
                self._disagreed()

    def _complete(self, deadline: float, limit: str = "") -> None:
        if self._rounds and self.spares is not None and not self.spares:
            # Making one takes as long as all else that a collective begins with.
            self.spares.append(type(self)())
        for handle in self._rounds:
            try:
                handle.wait(max(0.0, deadline - time.monotonic()))
            except DeadlineError as error:
                limit = limit or f"{self._timeout_s:g} s, the timeout of the process group"
                raise DeadlineError(
                    f"{self.label} was not complete after {limit}: {error}"
                ) from None
            except MismatchError:
                self._disagreed()
                raise
        self._finish_once()

    def _finish_once(self) -> None:
        """Does what remains to do, in the current stream where there are streams."""
        if self._finishing is None:
            return
        with self._finishing:
            if not self._is_finished:
                for action in self._after:
                    action()
                self._after = ()
                self._is_finished = True
                if self._outputs and not self._outputs[0].is_cpu:
                    device = devices.of(self._outputs[0])
                    self._finished = device.mark(device.current())
            elif self._finished is not None:
                # The first to wait may have been in another stream.
                devices.of(self._outputs[0]).current().wait_event(self._finished)

    def _disagreed(self) -> None:
        """Ranks made different calls. Rounds that have names of their own affect no others."""


class Completion:
    """Calls `conclude` once: when the last round is done, or with True when the deadline passes.

    It is called by a thread that announces completions, so it must not block. `deadline` is a time
    of the monotonic clock.
    """

    def __init__(
        self,
        rounds: Sequence[RoundHandle],
        deadline: float,
        conclude: Callable[[bool], object],
    ) -> None:
        self._conclude: Callable[[bool], object] | None = conclude
        self._lock = threading.Lock()
        self._remaining = len(rounds)
        if not rounds:
            self._end(late=False)
            return
        deadlines.add(self, deadline, lambda: self._end(late=True))
        for handle in rounds:
            handle.on_done(self._one_done)

    def _end(self, late: bool) -> None:
        """Says how it ended; only the first call does anything."""
        with self._lock:
            conclude, self._conclude = self._conclude, None
        deadlines.discard(self)
        if conclude is not None:
            conclude(late)

    def _one_done(self) -> None:
        with self._lock:
            self._remaining -= 1
            last = self._remaining == 0
        if last:
            self._end(late=False)


def _wait_until(handle: RoundHandle, deadline: float) -> None:
    """Blocks until a round is over, however it went, or until the deadline has passed."""
    left_s = max(0.0, deadline - time.monotonic())
    if isinstance(handle, DeviceRound):
        # Its wait() would order this thread's stream.
        done = threading.Event()
        handle.on_done(done.set)
        done.wait(left_s)
        return
    # What went wrong is raised by check().
    with contextlib.suppress(SumpterError):
        handle.wait(left_s)
