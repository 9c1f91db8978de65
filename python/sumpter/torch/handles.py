"""Operations in flight: submission to the core, and the handles that users wait on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sumpter import _session
from sumpter._session import Session
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


def poll(handle: TensorHandle) -> bool:
    """Whether synchronize(handle) would return, or raise, at once."""
    if not isinstance(handle, TensorHandle):
        raise ValueError(f"{handle!r} is not a handle of an operation")
    return handle.poll()


def synchronize(handle: Any) -> torch.Tensor | None:
    """Waits for an operation and returns its result; None for what is not a handle."""
    return handle.synchronize() if isinstance(handle, TensorHandle) else None


@dataclass(frozen=True)
class Identity:
    """Under which name an operation is matched with the other ranks' operations."""

    name: str
    tag: str = ""
    exclusive: bool = False


def identify(
    session: Session, kind: str, name: str | None, tensor: torch.Tensor, detail: str
) -> Identity:
    """The identity of a named operation, or of one matched by the order of calls.

    `detail` is what must agree across ranks besides the tensor: the reduction or the root.
    """
    if name is not None:
        return Identity(f"{kind}.{name}", exclusive=True)
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    signature = f"{kind}.noname.{dtype_name(tensor)}.{shape}.{detail}"
    label = describe(kind, tensor, tensor.shape, detail)
    return Identity(session.unnamed(signature), f"unnamed#{session.count('unnamed')}|{label}")


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
