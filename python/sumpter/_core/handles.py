"""Operations in flight, and what their callers wait on.

A `RoundHandle` is one round of the core. A `Handle` is an operation of one round with its result;
`GroupHandle` and `ChainedHandle` are operations of several.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from sumpter._core import callbacks
from sumpter._errors import SumpterError

_T = TypeVar("_T")


class RoundHandle(Protocol):
    """A submitted round: of the native core, staged through host memory, or of no elements."""

    def poll(self) -> bool:
        """Whether wait() would return, or raise, at once."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until the round is done; raises if it failed or if `timeout_s` ran out."""

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once from another thread when done; at once if it is done already.

        It must not block: a single thread announces all rounds.
        """


class Done:
    """A round on no elements: complete from the start."""

    def poll(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        return None

    def on_done(self, callback: Callable[[], object]) -> None:
        callback()


class Successor:
    """A round, and what had to be set before it, which is done when the round is."""

    def __init__(self, before: RoundHandle, round_: RoundHandle) -> None:
        self._before, self._round = before, round_

    def poll(self) -> bool:
        return self._before.poll() and self._round.poll()

    def wait(self, timeout_s: float | None = None) -> None:
        self._round.wait(timeout_s)
        self._before.wait(timeout_s)

    def on_done(self, callback: Callable[[], object]) -> None:
        self._round.on_done(callback)


class Handle(Generic[_T]):
    """An operation of one round; `finish` makes its result when the round is done.

    `seen` is called when the owner knows that the operation is over, which frees its name.
    """

    def __init__(
        self,
        round_: RoundHandle,
        finish: Callable[[], _T],
        seen: Callable[[], object] | None = None,
    ) -> None:
        self.round = round_
        self.seen = seen
        self._finish: Callable[[], _T] | None = finish
        self._result: Any = None

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        over = self.round.poll()
        if over and self.seen is not None:
            self.seen()
        return over

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once from another thread when the operation is done.

        It may begin operations and wait for them. Callbacks of several operations may run at the
        same time, so what they begin needs names.
        """
        self.round.on_done(lambda: callbacks.run(callback))

    def synchronize(self) -> _T:
        """Waits for the operation and returns its result, the same one every time."""
        try:
            self.round.wait()
        except SumpterError:
            if self.seen is not None:
                self.seen()
            raise
        if self.seen is not None:
            self.seen()
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result


class GroupHandle:
    """Several operations in flight, waited for as one; `finish` makes its result of theirs."""

    def __init__(
        self, handles: Sequence[AnyHandle], finish: Callable[[list[Any]], Any] = list
    ) -> None:
        self._handles = handles
        self._finish: Callable[[list[Any]], Any] | None = finish
        self._result: Any = None

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        return all(handle.poll() for handle in self._handles)

    def synchronize(self) -> Any:
        """Waits for all and returns the result, the same one every time.

        Raises the first error, once none is in flight any more: their names can be used again.
        """
        results, errors = [], []
        for handle in self._handles:
            try:
                results.append(handle.synchronize())
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if self._finish is not None:
            self._result, self._finish = self._finish(results), None
        return self._result


class ChainedHandle:
    """Operations that depend on what earlier ones bring, such as the sizes of what follows.

    Each of `steps` makes the next operations from the results of the last ones; `finish` makes
    the result of those of the last step. They begin as soon as they can, independently of the
    owner of this handle: other ranks may wait for them. Steps run within `context`, which puts
    what they compute on a device in the order of the caller's stream. What `computes` for long has
    its steps run beside the thread that announces rounds. `seen` is as of a `Handle`.
    """

    def __init__(
        self,
        first: Sequence[Handle[Any]],
        steps: Sequence[Callable[[list[Any]], Sequence[Handle[Any]]]],
        finish: Callable[[list[Any]], Any],
        context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        seen: Callable[[], object] | None = None,
        computes: bool = False,
    ) -> None:
        self._context = context
        self._seen = seen
        self._computes = computes
        self._stage = first
        self._steps = deque(steps)
        self._finish: Callable[[list[Any]], Any] | None = finish
        self._result: Any = None
        self._last: concurrent.futures.Future[GroupHandle] = concurrent.futures.Future()
        self._advance()

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        if not self._last.done():
            return False
        over = self._last.exception() is not None or self._last.result().poll()
        if over and self._seen is not None:
            self._seen()
        return over

    def synchronize(self) -> Any:
        """Waits for the operations and returns their result, the same one every time."""
        try:
            results = self._last.result().synchronize()
        finally:
            if self._seen is not None:
                self._seen()
        if self._finish is not None:
            self._result, self._finish = self._finish(results), None
        return self._result

    def _advance(self) -> None:
        """Takes the steps that can be taken; what must be waited for calls this again."""
        try:
            while self._steps:
                for handle in self._stage:
                    if not handle.poll():
                        # In the thread that announces it, where a step only begins operations;
                        # it waits for none.
                        announced = handle if self._computes else handle.round
                        announced.on_done(self._advance)
                        return
                with self._context():
                    results = [handle.synchronize() for handle in self._stage]
                    self._stage = self._steps.popleft()(results)
            self._last.set_result(GroupHandle(self._stage))
        except BaseException as error:
            # Raised by synchronize(); an exception of a callback would be lost.
            self._last.set_exception(error)


AnyHandle = Handle[Any] | GroupHandle | ChainedHandle


def poll(handle: AnyHandle) -> bool:
    """Whether synchronize(handle) would return, or raise, at once."""
    if not isinstance(handle, Handle | GroupHandle | ChainedHandle):
        raise ValueError(f"{handle!r} is not a handle of an operation")
    return handle.poll()


def synchronize(handle: Any) -> Any:
    """Waits for an operation and returns its result; None for what is not a handle.

    A function is what sparse_allreduce_async() returns, and is called.
    """
    if isinstance(handle, Handle | GroupHandle | ChainedHandle):
        return handle.synchronize()
    return handle() if callable(handle) else None
