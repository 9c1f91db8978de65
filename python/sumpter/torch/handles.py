"""Operations in flight: submission to the core, and the handles that users wait on."""

import concurrent.futures
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sumpter import _native
from sumpter._core.names import Identity
from sumpter._core.session import Handle, Session
from sumpter.torch import devices, staging


class TensorHandle:
    """An operation in flight and the tensor it will return."""

    def __init__(self, native: Handle, finish: Callable[[], torch.Tensor]) -> None:
        self._native = native
        self._finish: Callable[[], torch.Tensor] | None = finish
        self._output: torch.Tensor | None = None

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        return self._native.poll()

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once from another thread when the operation is done."""
        self._native.on_done(callback)

    def synchronize(self) -> torch.Tensor | None:
        """Waits for the operation and returns its result, the same one every time."""
        self._native.wait()
        if self._finish is not None:
            self._output, self._finish = self._finish(), None
        return self._output


class GroupHandle:
    """Several operations in flight, waited for as one; `finish` makes its result of theirs."""

    def __init__(
        self, handles: Sequence["AnyHandle"], finish: Callable[[list[Any]], Any] = list
    ) -> None:
        self._handles = handles
        self._finish: Callable[[list[Any]], Any] | None = finish
        self._output: Any = None

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        return all(handle.poll() for handle in self._handles)

    def synchronize(self) -> Any:
        """Waits for all and returns the result, the same one every time."""
        results = [handle.synchronize() for handle in self._handles]
        if self._finish is not None:
            self._output, self._finish = self._finish(results), None
        return self._output


class StagedHandle:
    """Operations that depend on what earlier ones bring, such as the sizes of what follows.

    Each of `steps` makes the next operations from the results of the last ones; `finish` makes
    the result of those of the last step. They begin as soon as they can, whatever the owner of
    this handle does meanwhile: other ranks may wait for them. They are ordered as if the caller had
    begun them, on the device of `near`, in its current stream.
    """

    def __init__(
        self,
        first: Sequence[TensorHandle],
        steps: Sequence[Callable[[list[Any]], Sequence[TensorHandle]]],
        finish: Callable[[list[Any]], Any],
        near: torch.Tensor,
    ) -> None:
        self._scene = devices.scene_of(near)
        self._stage = first
        self._steps = deque(steps)
        self._finish: Callable[[list[Any]], Any] | None = finish
        self._output: Any = None
        self._last: concurrent.futures.Future[GroupHandle] = concurrent.futures.Future()
        self._advance()

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        if not self._last.done():
            return False
        return self._last.exception() is not None or self._last.result().poll()

    def synchronize(self) -> Any:
        """Waits for the operations and returns their result, the same one every time."""
        results = self._last.result().synchronize()
        if self._finish is not None:
            self._output, self._finish = self._finish(results), None
        return self._output

    def _advance(self) -> None:
        """Takes the steps that can be taken; whatever must be waited for calls this again."""
        try:
            while self._steps:
                for handle in self._stage:
                    if not handle.poll():
                        handle.on_done(self._advance)
                        return
                with self._scene():
                    results = [handle.synchronize() for handle in self._stage]
                    self._stage = self._steps.popleft()(results)
            self._last.set_result(GroupHandle(self._stage))
        except BaseException as error:
            # Whoever waits is told; nobody reads what a callback raises.
            self._last.set_exception(error)


AnyHandle = TensorHandle | GroupHandle | StagedHandle


def poll(handle: AnyHandle) -> bool:
    """Whether synchronize(handle) would return, or raise, at once."""
    if not isinstance(handle, AnyHandle):
        raise ValueError(f"{handle!r} is not a handle of an operation")
    return handle.poll()


def synchronize(handle: Any) -> Any:
    """Waits for an operation and returns its result; None for what is not a handle.

    A function is what sparse_allreduce_async() returns, and is called.
    """
    if isinstance(handle, AnyHandle):
        return handle.synchronize()
    return handle() if callable(handle) else None


def agree(session: Session, identity: Identity, ranks: Sequence[int] | None) -> TensorHandle:
    """Starts waiting until every rank has made this call; fails on all if the calls differ.

    It comes before rounds in which not all ranks take part, or not as many on each: a rank could
    wait for ever in one of them.
    """
    native = session.barrier(f"{identity.name}.agree", ranks, identity.tag)
    identity.note(native)
    return TensorHandle(native, lambda: None)


def submit(
    session: Session,
    round_: _native.Round,
    identity: Identity,
    send: torch.Tensor | None,
    receive: torch.Tensor | None,
    priority: int = 0,
) -> Handle:
    """Submits a round on the memory of `send` and `receive`, which are kept until it is done.

    Both are contiguous and on one device. If that is not the CPU, wait() of the handle orders the
    current stream.
    """
    if (send if receive is None else receive).is_cpu:
        handle = session.submit(
            round_,
            identity.name,
            send=0 if send is None else send.data_ptr(),
            receive=0 if receive is None else receive.data_ptr(),
            keep=(send, receive),
            priority=priority,
            tag=identity.tag,
        )
    else:
        handle = staging.submit(session, round_, identity, send, receive, priority)
    identity.note(handle)
    return handle
