"""The stream protocol: what a framework offers for arrays in the memory of a device.

A front implements `Device` for its framework; staging.py moves rounds through it. In short:

- `current()`, `using(stream)`: the stream in which the calling thread computes, and changing it;
- `mark(stream)`: an event; `stream.wait_event(event)`: ordering one stream after another;
- `host_memory(size)`: pinned memory that the device copies to and from by itself;
- `copy_to_host()`, `copy_to_device()`: asynchronous copies, in the order of a stream;
- `arrival(stream, point)`: a point in a stream for which a thread waits, without blocking the
  driver, and at which the core's `point` happens. A device that cannot let it happen without Python
  leaves that to the thread that waits, and says `streams_wait = False`;
- `gate()`, `hold(stream, gate)`: a stream that waits until the host opens a gate, a word of memory
  that the core writes. A device whose streams cannot do so says `streams_wait = False`; threads
  wait for the network then.

A `DeviceGroup` is what devices of one machine do among each other, past the host's memory. Its
ranks call it in the order that device_link.py brings them.

Memory on the device is an object of the front's own, which staging only hands on.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from sumpter._native import Arrival as Point


class HostMemory(NamedTuple):
    """Host memory at an address; `owner` is the framework's object that holds it."""

    address: int
    size: int
    owner: object


class Event(Protocol):
    """A point in a stream, for which other streams can wait."""


class Arrival(Protocol):
    """A point in a stream, for which a thread can wait."""

    # After the waiting threads were released, for streams; if `streams_wait`.
    passed: Any

    def synchronize(self) -> None:
        """Blocks the calling thread until the stream has come so far."""


class Gate(Protocol):
    """What streams wait for until the host opens it."""

    @property
    def word(self) -> tuple[int, int]:
        """The address of an aligned 32-bit word, and the value that opens the gate if stored there.

        Both last until opened() or open() is called, one of them and once.
        """

    def open(self) -> None:
        """Lets the streams go on. To be called by any thread; never waits for the device."""

    def opened(self) -> None:
        """The core has opened it, by the word."""


class Stream(Protocol):
    """A queue of a device's work."""

    def wait_event(self, event: Any) -> None:
        """Lets what is enqueued from now on wait for `event`; returns at once."""


class Device(Protocol):
    """A device with streams, events and host memory that it can copy to and from by itself."""

    # For copies, one for each direction.
    device_to_host: Stream
    host_to_device: Stream
    # Whether its streams can wait for the host, so that gate() can be called.
    streams_wait: bool

    def current(self) -> Stream:
        """The stream in which the calling thread computes on this device."""

    def using(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Makes `stream` the calling thread's current one."""

    def mark(self, stream: Any) -> Event:
        """The point that `stream` has reached when all that it has been given is done."""

    def arrival(self, stream: Any, point: Point | None = None) -> Arrival:
        """That point for a thread, which waits without calls that other threads could block.

        The core's `point` happens there. A device whose streams cannot wait may leave that to the
        thread that waits.
        """

    def gate(self) -> Gate:
        """A gate that is shut."""

    def hold(self, stream: Any, gate: Any) -> None:
        """Lets what is enqueued in `stream` from now on wait until `gate` is open."""

    def host_memory(self, size: int) -> HostMemory:
        """`size` uninitialized bytes of pinned host memory."""

    def copy_to_host(
        self, host: HostMemory, memory: Any, start: int, size: int, stream: Any
    ) -> None:
        """Enqueues a copy of `size` bytes of the device's `memory` from `start` on.

        They go to the same place in `host`, which is as large. The copy holds both until it is
        done.
        """

    def copy_to_device(
        self, memory: Any, host: HostMemory, start: int, size: int, stream: Any
    ) -> None:
        """The same in the other direction."""


class DeviceGroup(Protocol):
    """The devices of some ranks of a machine, each of which reduces a part of a tensor.

    `parts` are the bytes of each member, by its place in the group: where they start and how many
    there are, perhaps none. They follow each other and are all of the tensor. Ranks must call the
    collectives in one order.
    """

    # Where collectives run.
    stream: Stream

    def part(self, memory: Any, start: int, size: int) -> Any:
        """`size` bytes of the device's `memory` from `start` on."""

    def mark(self) -> Event:
        """The point in `stream` when all that it has been given is done."""

    def arrival(self) -> Arrival:
        """That point for a thread."""

    def reduce_scatter(
        self, source: Any, target: Any, parts: Sequence[tuple[int, int]], dtype: str, op: str
    ) -> None:
        """Enqueues: this rank's part of `target` becomes the reduction of all ranks' `source`.

        `dtype` and `op` are as in a `Description`. `target` may be `source`, whose other parts do
        not change. It holds both until it is done.
        """

    def all_gather(self, memory: Any, parts: Sequence[tuple[int, int]], dtype: str) -> None:
        """Enqueues: the parts of `memory` become those of the ranks that have them."""

    def abort(self) -> None:
        """Ends collectives that wait for a rank which will never come. Nothing is called after."""

    def close(self, together: bool) -> None:
        """Frees what it has; `together` if all ranks do so, and none uses another's memory."""
