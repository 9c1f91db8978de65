"""Operations in flight: submission to the core, and the handles that users wait on."""

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sumpter import _session
from sumpter._session import Session
from sumpter.torch.process_sets import ProcessSet, global_process_set, label
from sumpter.torch.tensors import WireForm, describe, dtype_name


class TensorHandle:
    """An operation in flight and the tensor it will return."""

    def __init__(self, native: _session.Handle, finish: Callable[[], torch.Tensor]) -> None:
        self._native = native
        self._finish: Callable[[], torch.Tensor] | None = finish
        self._output: torch.Tensor | None = None

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        return self._native.poll()

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
    """Operations that depend on what an earlier one brings, such as the sizes of what follows.

    They begin as soon as it is done, whatever the owner of this handle does meanwhile: other
    ranks may wait for them.
    """

    def __init__(
        self,
        first: TensorHandle,
        then: Callable[[torch.Tensor | None], Sequence[TensorHandle]],
        finish: Callable[[], Any],
    ) -> None:
        self._first = first
        self._then = then
        self._finish: Callable[[], Any] | None = finish
        self._output: Any = None
        self._second: concurrent.futures.Future[GroupHandle] = concurrent.futures.Future()
        first._native.on_done(self._advance)

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        if not self._second.done():
            return False
        return self._second.exception() is not None or self._second.result().poll()

    def synchronize(self) -> Any:
        """Waits for the operations and returns their result, the same one every time."""
        self._second.result().synchronize()
        if self._finish is not None:
            self._output, self._finish = self._finish(), None
        return self._output

    def _advance(self) -> None:
        try:
            self._second.set_result(GroupHandle(self._then(self._first.synchronize())))
        except BaseException as error:
            # Whoever waits is told; nobody reads what a callback raises.
            self._second.set_exception(error)


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


@dataclass(frozen=True)
class Identity:
    """Under which name an operation is matched with the other ranks' operations."""

    name: str
    tag: str = ""
    exclusive: bool = False


def identify(
    session: Session,
    kind: str,
    name: str | None,
    tensor: torch.Tensor,
    detail: str,
    process_set: ProcessSet = global_process_set,
) -> Identity:
    """The identity of a named operation, or of one matched by the order of calls in its set.

    `detail` is what must agree across ranks besides the tensor: the reduction or the root.
    """
    among = label(process_set)
    if name is not None:
        return Identity(f"{kind}.{name}{among}", exclusive=True)
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    signature = f"{kind}.noname.{dtype_name(tensor)}.{shape}.{detail}{among}"
    call = describe(kind, tensor, tensor.shape, detail)
    count = session.count(f"unnamed{among}")
    return Identity(session.unnamed(signature), f"unnamed{among}#{count}|{call}")


def submit(
    session: Session,
    kind: str,
    identity: Identity,
    form: WireForm,
    send: torch.Tensor | None,
    receive: torch.Tensor | None,
    **options: Any,
) -> _session.Handle:
    """Submits a round on the memory of `send` and `receive`, which are kept until it is done."""
    return session.submit(
        kind=kind,
        name=identity.name,
        tag=identity.tag,
        exclusive=identity.exclusive,
        shape=form.shape,
        dtype=form.dtype,
        send=0 if send is None else send.data_ptr(),
        receive=0 if receive is None else receive.data_ptr(),
        keep=(send, receive),
        **options,
    )
