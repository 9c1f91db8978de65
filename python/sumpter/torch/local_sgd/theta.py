"""Theta, the parameters as all ranks know them, in host memory; copies of it from and to a device.

Of parameters on a device, the host memory is such that the device copies from and to it by itself,
in the order of the caller's current stream. The host waits only where it reads or writes the
values itself.
"""

import contextlib
from collections.abc import Iterable, Iterator

import torch

from sumpter._core.streams import Event, Stream
from sumpter.torch import devices
from sumpter.torch.devices import TensorDevice


class Theta:
    """The values of some parameters after the last outer steps, in the parameters' types."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        # What is in them is known to the host after settle() and the outer steps under way.
        self.tensors = {parameter: devices.host_tensor(parameter) for parameter in parameters}
        # Of each device, when its last copy is done.
        self._copied: dict[TensorDevice, Event] = {}

    def near(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The values on the parameter's device, to be used in the current stream.

        Of a parameter of the CPU it is the tensor itself.
        """
        tensor = self.tensors[parameter]
        if parameter.is_cpu:
            # As .data, since the servers' values may change in no other way, which torch would
            # count.
            return tensor.data
        near = torch.empty_like(parameter.detach(), memory_format=torch.contiguous_format)
        memory, host = devices.memory_of(near), devices.host_memory_of(tensor)
        with self._copying(near) as (device, stream):
            device.copy_to_device(memory, host, 0, host.size, stream)
        return near

    def take(self, parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
        """Takes values on the parameter's device, as they are for the current stream."""
        tensor = self.tensors[parameter]
        if values.is_cpu:
            tensor.copy_(values)
            return
        memory, host = devices.memory_of(values.contiguous()), devices.host_memory_of(tensor)
        with self._copying(values) as (device, stream):
            device.copy_to_host(host, memory, 0, host.size, stream)

    def settle(self) -> None:
        """Blocks until all copies are done; then the host may read and write the tensors."""
        for device, copied in self._copied.items():
            stream = device.current()
            stream.wait_event(copied)
            device.arrival(stream).synchronize()
        self._copied.clear()

    @contextlib.contextmanager
    def _copying(self, tensor: torch.Tensor) -> Iterator[tuple[TensorDevice, Stream]]:
        """The device and the stream for a copy, which comes after the copies before it."""
        device = devices.of(tensor)
        stream = device.current()
        if device in self._copied:
            stream.wait_event(self._copied[device])
        yield device, stream
        self._copied[device] = device.mark(stream)
