"""The stream protocol of the core (_core/streams.py) for torch's devices.

Nothing here is built against a driver: torch's module for the device (torch.cuda) has loaded it,
and what that has no call for is in _core/cuda_driver.py.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from sumpter import _native
from sumpter._core import cuda_driver
from sumpter._core.streams import Arrival, Device, Event, Gate, HostMemory, Stream

_log = logging.getLogger("sumpter")


class TensorDevice(Device, Protocol):
    """A device of torch's tensors; its memory is a flat tensor of bytes."""

    # For torch.futures.Future(devices=...) with results on this device.
    future_devices: list[torch.device]
    # For collectives of a device group.
    device_to_device: Stream

    def keep(self, memory: torch.Tensor, stream: Any) -> None:
        """Keeps memory from being reused before `stream` has done what it has been given."""


class TorchDevice:
    """A device through the module that torch has for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        self.device_to_host = self._module.Stream(device)
        self.host_to_device = self._module.Stream(device)
        self.device_to_device = self._module.Stream(device)
        self.future_devices = [device]
        # For the driver's calls of functions.
        self._calls = self._module.Stream(device)
        self._driver = cuda_driver.load()
        if self._driver is not None:
            self._gates = cuda_driver.Gates(self._driver, self.host_memory)
            self._try_driver()
        self.streams_wait = self._driver is not None

    def current(self) -> Stream:
        return self._module.current_stream(self._device)

    def using(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return self._module.stream(stream)

    def mark(self, stream: Any) -> Event:
        # Blocking: a thread that waits for it sleeps, and leaves the processor to reductions.
        event = self._module.Event(blocking=True)
        event.record(stream)
        return event

    def arrival(self, stream: Any, point: _native.Arrival | None = None) -> Arrival:
        event = self.mark(stream)
        if self._driver is None:
            return event
        point = point or _native.Arrival()
        arrival = cuda_driver.Arrival(event.query, point)
        # In a stream of its own: what comes next in `stream` need not wait for the call.
        with self.using(self._calls):
            self._calls.wait_event(event)
            self._driver.reach(self._calls.cuda_stream, point)
            arrival.passed = self.mark(self._calls)
        return arrival

    def gate(self) -> Gate:
        return self._gates.make()

    def hold(self, stream: Any, gate: cuda_driver.Gate) -> None:
        with self.using(stream):
            gate.hold(stream.cuda_stream)

    def _try_driver(self) -> None:
        """Checks that the driver supports on this device what it has functions for."""
        try:
            gate = self.gate()
            self.hold(self.host_to_device, gate)
            gate.open()
            self.arrival(self.host_to_device).synchronize()
        except RuntimeError as error:
            _log.warning(
                "%s: threads wait for the network, streams cannot: %s", self._device, error
            )
            self._driver = None

    def host_memory(self, size: int) -> HostMemory:
        # Torch's allocator keeps such memory, and reuses it when the copies it knows of are done.
        pinned = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        return HostMemory(pinned.data_ptr(), size, pinned)

    def copy_to_host(
        self, host: HostMemory, memory: torch.Tensor, start: int, size: int, stream: Any
    ) -> None:
        self._copy(host.owner, memory, (start, size), stream)
        self.keep(memory, stream)

    def copy_to_device(
        self, memory: torch.Tensor, host: HostMemory, start: int, size: int, stream: Any
    ) -> None:
        self._copy(memory, host.owner, (start, size), stream)
        self.keep(memory, stream)

    def keep(self, memory: torch.Tensor, stream: Any) -> None:
        memory.record_stream(stream)

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, stretch: tuple[int, int], stream: Any
    ) -> None:
        with self.using(stream):
            target.narrow(0, *stretch).copy_(source.narrow(0, *stretch), non_blocking=True)


# By type of device. An entry needs a module of torch with streams, events and pinned memory.
makers: dict[str, Callable[[torch.device], TensorDevice]] = {"cuda": TorchDevice}

_known: dict[torch.device, TensorDevice] = {}


def is_carried(tensor: torch.Tensor) -> bool:
    """Whether the tensor, which is not the CPU's, is on a device whose tensors are carried."""
    return tensor.device.type in makers


def of(tensor: torch.Tensor) -> TensorDevice:
    """The device of a tensor that is_carried()."""
    name = tensor.device
    known = _known.get(name)
    # Of two threads that come first at the same time, one makes streams that are not used.
    return known if known is not None else _known.setdefault(name, makers[name.type](name))


def stream_context(tensor: torch.Tensor) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What another thread must enter to compute in the order of the caller's current stream."""
    if tensor.is_cpu:
        return contextlib.nullcontext
    device = of(tensor)
    stream = device.current()
    return lambda: device.using(stream)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as flat bytes, of which autograd does not know."""
    return tensor.data.view(-1).view(torch.uint8)


def host_memory_of(tensor: torch.Tensor) -> HostMemory:
    """The memory of a contiguous tensor in host memory, as devices copy from and to it."""
    memory = memory_of(tensor)
    return HostMemory(memory.data_ptr(), memory.numel(), memory)


def host_tensor(like: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of this shape and type in host memory, uninitialized.

    The device of `like`, if it is not the CPU, can copy from and to it by itself.
    """
    if like.is_cpu or not is_carried(like):
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")
    pinned: Any = of(like).host_memory(like.numel() * like.element_size()).owner
    tensor: torch.Tensor = pinned.view(like.dtype).view(like.shape)
    return tensor


def for_futures(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """The devices that a torch future with the value `tensors` has to be made with."""
    found = [name for t in tensors if not t.is_cpu for name in of(t).future_devices]
    return list(dict.fromkeys(found))
