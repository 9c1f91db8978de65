"""What the Rust core can carry of a torch tensor, and how it is laid out for it.

The core reads and writes contiguous host memory of eight element types. Everything else is
brought into that form here, but for the memory of devices (devices.py), or refused here with a
message that names what was wrong.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sumpter._core import staging
from sumpter._core.handles import RoundHandle
from sumpter._core.session import Session
from sumpter._core.streams import Device
from sumpter._core.tensor import Tensor
from sumpter._errors import UnsupportedError
from sumpter.torch import device_groups, devices

if TYPE_CHECKING:
    from sumpter._native import Decision

DTYPE_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
}


class WireForm(NamedTuple):
    """Shape and element type under which the core sees a tensor's memory."""

    shape: tuple[int, ...]
    dtype: str


def check_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Raises UnsupportedError for what is no tensor at all."""
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedError(f"expected a torch.Tensor, not {type(tensor).__name__}")
    return tensor


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether gradients flow through what is made of the tensor, if it is one."""
    is_tensor = isinstance(tensor, torch.Tensor)
    return is_tensor and torch.is_grad_enabled() and tensor.requires_grad


def check_carried(tensor: torch.Tensor) -> None:
    """Raises UnsupportedError unless the tensor is a dense tensor of the CPU or a CUDA device."""
    # One call for what nearly every tensor is.
    if isinstance(tensor, torch.Tensor) and tensor.is_cpu and tensor.layout == torch.strided:
        return
    check_tensor(tensor)
    if not tensor.is_cpu and not devices.is_carried(tensor):
        raise UnsupportedError(
            f"the tensor is on device {tensor.device}: Sumpter sums tensors of the CPU and of "
            "CUDA devices, so copy it to the CPU first"
        )
    if tensor.layout != torch.strided:
        raise UnsupportedError(
            f"the tensor's layout is {tensor.layout}: Sumpter sums dense tensors, so call "
            ".to_dense() first"
        )


def reduced_form(tensor: torch.Tensor, op: str) -> WireForm:
    """The form in which a reduction sees `tensor`; raises for what it cannot reduce."""
    if tensor.dtype in DTYPE_NAMES:
        return WireForm(tuple(tensor.shape), DTYPE_NAMES[tensor.dtype])
    if tensor.dtype == torch.bool and op != "sum":
        # With 0 and 1, the minimum and the product mean "all" and the maximum means "any".
        return WireForm(tuple(tensor.shape), "uint8")
    if tensor.dtype == torch.bool:
        raise UnsupportedError("bool tensors have no sum: use op=Max for 'any', op=Min for 'all'")
    raise UnsupportedError(
        f"cannot reduce elements of {tensor.dtype}; supported are "
        + ", ".join(sorted(DTYPE_NAMES.values()))
    )


def moved_form(tensor: torch.Tensor) -> WireForm:
    """The form in which `tensor` is copied around: any element type, as bytes if need be."""
    if tensor.dtype in DTYPE_NAMES:
        return WireForm(tuple(tensor.shape), DTYPE_NAMES[tensor.dtype])
    return WireForm((tensor.numel() * tensor.element_size(),), "uint8")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory has its elements as they are, in order and without gaps."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its memory can be sent as it lies, else a contiguous copy."""
    # An alias, which keeps the memory even if the caller's tensor gets another meanwhile.
    tensor = tensor.detach()
    if is_plain(tensor):
        return tensor
    return tensor.resolve_conj().resolve_neg().contiguous()


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if results can be received into it, else contiguous memory like it."""
    # An alias, which keeps the memory even if the caller's tensor gets another meanwhile.
    tensor = tensor.detach()
    if is_plain(tensor):
        return tensor
    return tensor.new_empty(tensor.shape)


def dtype_name(tensor: torch.Tensor) -> str:
    """The element type without torch's prefix."""
    return str(tensor.dtype).removeprefix("torch.")


def is_sharded(session: Session, tensor: torch.Tensor, ranks: Sequence[int] | None) -> bool:
    """Whether the devices of a machine reduce a tensor before it goes through the host.

    In a job with device groups, of all-reduces of all ranks, if the tensor is on a device.
    """
    return not tensor.is_cpu and session.has_device_groups and session.is_of_all(ranks)


def start_round(
    declared: Tensor,
    send: torch.Tensor | None,
    receive: torch.Tensor | None,
    priority: int = 0,
    tag: str = "",
    update: Sequence[float] | None = None,
    order: Sequence[tuple[int, int, int, int]] | None = None,
    rescale: float = 1.0,
) -> RoundHandle:
    """Starts a round of `declared` on the memory of `send` and `receive`, kept until it is done.

    Both are contiguous and on one device; `receive` may be in host memory as well, from which the
    device of `send` can copy by itself. If one is not the CPU's, wait() of the handle orders the
    current stream. `update` and `order`, for a round of a variable, and `rescale` are as of
    `Tensor.submit`.
    """
    near = receive if send is None else send
    if near.is_cpu:
        return declared.submit(
            0 if send is None else send.data_ptr(),
            0 if receive is None else receive.data_ptr(),
            keep=(send, receive),
            priority=priority,
            tag=tag,
            update=update,
            order=order,
            rescale=rescale,
        )
    if declared.is_alone:
        if send is not None and receive is not None and send.data_ptr() != receive.data_ptr():
            receive.copy_(send)
        return _InStream(devices.of(near))
    return staging.stage(
        declared,
        devices.of(near),
        None if send is None else devices.memory_of(send),
        _receiving(receive),
        priority,
        tag,
        update,
        order,
        device_groups.of(declared, near),
        rescale,
    )


def start_deferred(
    declared: Tensor, send: torch.Tensor, receive: torch.Tensor
) -> "tuple[RoundHandle, Decision | None]":
    """Starts a round of a variable as start_round() does, as `Tensor.submit_deferred` does."""
    if send.is_cpu:
        addresses = (send.data_ptr(), receive.data_ptr())
        return declared.submit_deferred(*addresses, keep=(send, receive))
    memory = devices.memory_of(send)
    return staging.stage_deferred(declared, devices.of(send), memory, _receiving(receive))


def _receiving(receive: torch.Tensor | None) -> Any:
    """Memory of a device, or the host's, for a round whose contribution is on a device."""
    if receive is None:
        return None
    return devices.host_memory_of(receive) if receive.is_cpu else devices.memory_of(receive)


class _InStream:
    """A round among one rank on a device: what there is to do is in the caller's stream."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._enqueued = device.mark(device.current())

    def poll(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        """Lets the current stream wait."""
        self._device.current().wait_event(self._enqueued)

    def on_done(self, callback: Callable[[], object]) -> None:
        callback()
