"""Which devices' tensors are carried, and what is needed of a device to carry them.

Nothing here is built against a driver: torch's module for the device (torch.cuda) has loaded it,
and what that has no call for is in driver.py. How tensors travel is in staging.py.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from sumpter.torch import driver

_log = logging.getLogger("sumpter")


class Event(Protocol):
    """A point in a stream, for which other streams can wait."""


class Arrival(Protocol):
    """A point in a stream, for which a thread can wait."""

    # When the threads that wait have been told, for streams; if the device's streams can wait for
    # the host.
    passed: Any

    def synchronize(self) -> None:
        """Blocks the calling thread until the stream has come so far."""


class Gate(Protocol):
    """What streams wait for until the host opens it."""

    def hold(self, stream: Any) -> None:
        """Lets what is enqueued in `stream` from now on wait until open()."""

    def open(self) -> None:
        """Lets the streams go on. To be called once, by any thread; never waits for the device."""


class Stream(Protocol):
    """A queue of a device's work."""

    def wait_event(self, event: Any) -> None:
        """Lets what is enqueued from now on wait for `event`; returns at once."""


class Device(Protocol):
    """A device with streams, events and host memory that it can copy to and from by itself."""

    out: Stream
    back: Stream
    # What torch.futures.Future(devices=...) has to know of results on this device.
    future_devices: list[torch.device]
    # Whether its streams can wait for the host, so that gate() can be called.
    follows: bool

    def current(self) -> Stream:
        """The stream in which the calling thread computes on this device."""

    def using(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Makes `stream` the calling thread's current one."""

    def mark(self, stream: Any) -> Event:
        """The point that `stream` has reached when all that it has been given is done."""

    def arrival(self, stream: Any) -> Arrival:
        """That point for a thread, which learns of it even while a call of the driver waits."""

    def gate(self) -> Gate:
        """A gate that is shut."""

    def host_memory(self, count: int) -> torch.Tensor:
        """`count` uninitialized bytes of pinned host memory."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        """Enqueues a copy between host memory and the device, which needs the memory until then."""


class TorchDevice:
    """A device through the module that torch has for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        self.out = self._module.Stream(device)
        self.back = self._module.Stream(device)
        self.future_devices = [device]
        self._told = self._module.Stream(device)
        self._driver = driver.load()
        if self._driver is not None:
            self._gates = driver.Gates(self._driver, self.host_memory)
            self._try_driver()
        self.follows = self._driver is not None

    def current(self) -> Stream:
        return self._module.current_stream(self._device)

    def using(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return self._module.stream(stream)

    def mark(self, stream: Any) -> Event:
        # Blocking: a thread that waits for it sleeps, and leaves the processor to the sums.
        event = self._module.Event(blocking=True)
        event.record(stream)
        return event

    def arrival(self, stream: Any) -> Arrival:
        event = self.mark(stream)
        if self._driver is None:
            return event
        arrival = driver.Arrival(event)
        # In a stream of its own: what comes next in `stream` need not wait for the call.
        with self.using(self._told):
            self._told.wait_event(event)
            self._driver.call(self._told.cuda_stream, arrival.happen)
            arrival.passed = self.mark(self._told)
        return arrival

    def gate(self) -> Gate:
        return self._gates.make()

    def _try_driver(self) -> None:
        """Sees whether the driver does on this device what it has functions for."""
        try:
            gate = self.gate()
            with self.using(self.back):
                gate.hold(self.back)
            gate.open()
            self.arrival(self.back).synchronize()
        except RuntimeError as error:
            _log.warning(
                "%s: threads wait for the network, streams cannot: %s", self._device, error
            )
            self._driver = None

    def host_memory(self, count: int) -> torch.Tensor:
        # Torch's allocator keeps such memory, and reuses it when the copies it knows of are done.
        return torch.empty(count, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        with self.using(stream):
            target.copy_(source, non_blocking=True)
        (source if target.is_cpu else target).record_stream(stream)


# By type of device. An entry needs a module of torch with streams, events and pinned memory.
makers: dict[str, Callable[[torch.device], Device]] = {"cuda": TorchDevice}

_known: dict[torch.device, Device] = {}


def is_carried(tensor: torch.Tensor) -> bool:
    """Whether the tensor, which is not the CPU's, is on a device whose tensors are carried."""
    return tensor.device.type in makers


def of(tensor: torch.Tensor) -> Device:
    """The device of a tensor that is_carried()."""
    name = tensor.device
    known = _known.get(name)
    # Of two threads that come first at the same time, one makes streams that are not used.
    return known if known is not None else _known.setdefault(name, makers[name.type](name))


def scene_of(tensor: torch.Tensor) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What another thread must enter to compute in the order of the caller's current stream."""
    if tensor.is_cpu:
        return contextlib.nullcontext
    device = of(tensor)
    stream = device.current()
    return lambda: device.using(stream)


def for_futures(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """What a torch future whose value is `tensors` must be told of their devices."""
    found = [name for t in tensors if not t.is_cpu for name in of(t).future_devices]
    return list(dict.fromkeys(found))
