"""A device for tests, in host memory: streams are threads, and copies happen when those get there.

A tensor of it is an ordinary one of another class. Whatever computes with such a tensor first waits
for the calling thread's current stream, as a kernel in that stream would, and for nothing else: who
forgets to order streams sees old memory. Pinned memory begins as noise. Mixing such tensors
with ordinary ones is an error, as between devices.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import inspect
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from sumpter._core.streams import HostMemory
from sumpter.torch import devices

# Only so that a hang fails instead of blocking.
HANG_S = 120.0
NOISE = 0xA5

# What is done with a tensor without looking at its elements.
_NOT_COMPUTED = {
    "__get__", "__set__", "as_subclass", "data_ptr", "detach", "dim", "element_size", "empty_like",
    "is_complex", "is_conj", "is_contiguous", "is_floating_point", "is_neg", "narrow", "new_empty",
    "numel", "register_post_accumulate_grad_hook", "requires_grad_", "reshape", "resolve_conj",
    "resolve_neg", "size", "split", "stride", "tensor_split", "unbind", "view", "__len__",
}  # fmt: skip
_BETWEEN_DEVICES = {"__set__", "as_subclass", "copy_", "cpu"}


class Name(NamedTuple):
    """What `tensor.device` is."""

    type: str
    index: int


class Place(NamedTuple):
    """Where the device is in a machine, by the names of the links that lead to it."""

    gpu: str = "gpu"
    switch: str = "switch"
    nvlink: bool = False


# What went wrong on the device. As with CUDA, the next thread that waits for it gets it.
errors: list[BaseException] = []


class Event:
    """A point in a stream."""

    def __init__(self) -> None:
        self._happened = threading.Event()
        self.passed = self

    def happen(self) -> None:
        self._happened.set()

    def happened(self) -> bool:
        return self._happened.is_set()

    def synchronize(self) -> None:
        self.hold()
        if errors:
            raise RuntimeError(f"the device failed: {errors[0]}")

    def hold(self) -> None:
        """Waits for it in a stream, which goes on whatever went wrong."""
        assert self._happened.wait(HANG_S), "a stream did not come to an event"


class Gate:
    """What streams wait for until the host opens it: a word, as in the memory of a real device."""

    def __init__(self) -> None:
        self._word = ctypes.c_uint32(0)
        self._is_over = False

    @property
    def word(self) -> tuple[int, int]:
        return ctypes.addressof(self._word), 1

    def open(self) -> None:
        assert not self._word.value, "a gate is opened once"
        self._word.value = 1
        self.opened()

    def opened(self) -> None:
        assert self._word.value and not self._is_over, "a gate is opened once"
        self._is_over = True

    def hold(self) -> None:
        """Waits for it in a stream."""
        deadline = time.monotonic() + HANG_S
        while not self._word.value:
            assert time.monotonic() < deadline, "a stream did not pass a gate"
            time.sleep(0.0002)


# Not set while a call of the driver waits, and all others wait for that one.
driver_is_free = threading.Event()
driver_is_free.set()


class Stream:
    """A thread that does one thing after the other, each after a pause of up to `pause_s`."""

    def __init__(self, pause_s: float = 0.0, seed: int = 0) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._pause_s = pause_s
        self._random = random.Random(seed)
        threading.Thread(target=self._run, daemon=True).start()

    def enqueue(self, work: Callable[[], object]) -> None:
        assert driver_is_free.wait(HANG_S), "a call of the driver was stuck"
        self._work.put(work)

    def wait_event(self, event: Event) -> None:
        self.enqueue(event.hold)

    def mark(self) -> Event:
        event = Event()
        self.enqueue(event.happen)
        return event

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within, the stream does nothing of what it is given."""
        gate = Event()
        self.wait_event(gate)
        try:
            yield
        finally:
            gate.happen()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            time.sleep(self._random.random() * self._pause_s)
            work()
            del work


class FakeDevice:
    """What Sumpter needs of a device, and what tests look at."""

    future_devices: list[torch.device] = []

    def __init__(
        self, pause_s: float = 0.0, streams_wait: bool = True, place: Place | None = None
    ) -> None:
        self.streams_wait = streams_wait
        self.place = place or Place()
        # Bytes that went over a link: its lower end, its upper end, and the direction.
        self.carried: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.device_to_host = Stream(pause_s, seed=1)
        self.host_to_device = Stream(pause_s, seed=2)
        self.device_to_device = Stream(pause_s, seed=4)
        self.main = Stream(pause_s, seed=3)
        self._here = threading.local()
        # The bytes of each copy that has been done.
        self.copied_to_host: list[int] = []
        self.copied_to_device: list[int] = []

    def current(self) -> Stream:
        return getattr(self._here, "stream", self.main)

    @contextlib.contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        before, self._here.stream = self.current(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def mark(self, stream: Stream) -> Event:
        return stream.mark()

    def arrival(self, stream: Stream, point: Any = None) -> Event:
        if self.streams_wait and point is not None:
            stream.enqueue(point.happen)
        return stream.mark()

    def gate(self) -> Gate:
        assert self.streams_wait, "streams of this device cannot wait for the host"
        return Gate()

    def hold(self, stream: Stream, gate: Gate) -> None:
        stream.enqueue(gate.hold)

    def host_memory(self, size: int) -> HostMemory:
        noise = torch.full((size,), NOISE, dtype=torch.uint8)
        return HostMemory(noise.data_ptr(), size, noise)

    def copy_to_host(
        self, host: HostMemory, memory: torch.Tensor, start: int, size: int, stream: Stream
    ) -> None:
        target, source = host.owner.narrow(0, start, size), memory.narrow(0, start, size)
        self._copy(target, source, stream, self.copied_to_host, "up")

    def copy_to_device(
        self, memory: torch.Tensor, host: HostMemory, start: int, size: int, stream: Stream
    ) -> None:
        target, source = memory.narrow(0, start, size), host.owner.narrow(0, start, size)
        self._copy(target, source, stream, self.copied_to_device, "down")

    def keep(self, memory: torch.Tensor, stream: Stream) -> None:
        """Memory is freed when nothing refers to it."""

    def count_exchange(self, size: int, direction: str) -> None:
        """Bytes to or from another device: over NVLink, or the switch that they share."""
        upper = "NVLink" if self.place.nvlink else self.place.switch
        self.carried[self.place.gpu, upper, direction] += size

    def _copy(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        stream: Stream,
        done: list[int],
        direction: str,
    ) -> None:
        assert target.is_cpu != source.is_cpu, "copies are between the device and the host"
        into, of = plain(target), plain(source)

        def work() -> None:
            into.copy_(of)
            done.append(len(into))
            gpu, switch, _ = self.place
            for link in ((gpu, switch), (switch, "cpu")):
                self.carried[(*link, direction)] += len(into)

        stream.enqueue(work)

    @contextlib.contextmanager
    def stuck(self) -> Iterator[None]:
        """Within, a call of the driver waits for the device, as cudaFree does, and holds others."""
        driver_is_free.clear()
        try:
            yield
        finally:
            driver_is_free.set()

    def launch(self, kernel: Callable[[], object]) -> None:
        """Enqueues what changes memory in the current stream."""
        self.current().enqueue(kernel)


class OnFake(torch.Tensor):
    """A tensor of the device."""

    @property
    def is_cpu(self) -> bool:
        return False

    @property
    def device(self) -> Name:
        return Name("fake", 0)

    def cpu(self) -> torch.Tensor:
        """A copy in ordinary memory, for which the caller waits."""
        device().current().mark().synchronize()
        return plain(self).clone()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        given = list(_tensors((*args, *(kwargs or {}).values())))
        if name not in _BETWEEN_DEVICES and not all(
            isinstance(tensor, cls) or not plain(tensor).dim() for tensor in given
        ):
            raise RuntimeError(f"{name}() of tensors on different devices")
        views = name == "contiguous" and plain(args[0]).is_contiguous()
        views |= name == "__getitem__" and len(given) == 1
        if name not in _NOT_COMPUTED and not views:
            device().current().mark().synchronize()
        return super().__torch_function__(func, types, args, kwargs or {})


def install(
    pause_s: float = 0.0, streams_wait: bool = True, place: Place | None = None
) -> FakeDevice:
    """Makes the device known to Sumpter, once a process."""
    made = FakeDevice(pause_s, streams_wait, place)
    devices.makers["fake"] = lambda _: made
    torch.Tensor._make_wrapper_subclass = staticmethod(_make_wrapper_subclass)
    torch.Tensor.to = _to
    torch.is_autocast_enabled = _is_autocast_enabled
    devices._known.pop(Name("fake", 0), None)
    return device()


def install_for_torch_distributed() -> None:
    """Lets the backend see tensors of the device: torch calls it with subclasses switched off."""
    from sumpter.torch.c10d.backend import SumpterBackend
    from sumpter.torch.c10d.collective import Group
    from sumpter.torch.c10d.delegate import DelegatedCollectives
    from sumpter.torch.c10d.work import SumpterWork

    # What begins calls on tensors of the CPU without Python would take these for such.
    Group._learn = lambda *_: None  # type: ignore[method-assign]
    for owner in (SumpterBackend, DelegatedCollectives, SumpterWork):
        for name, method in list(vars(owner).items()):
            if inspect.isfunction(method) and not name.startswith("__"):
                setattr(owner, name, _with_subclasses(method))


def _with_subclasses(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return method(*args, **kwargs)

    return wrapped


# What torch's functions of these names were before install().
_wrapper_subclass, _torch_to = torch.Tensor._make_wrapper_subclass, torch.Tensor.to
_torch_autocast = torch.is_autocast_enabled


def _make_wrapper_subclass(*given: Any, device: Any, **options: Any) -> torch.Tensor:
    """A tensor without elements; in torch's eyes the device is the CPU."""
    device = "cpu" if isinstance(device, Name) else device
    return _wrapper_subclass(*given, device=device, **options)


def _to(tensor: torch.Tensor, *given: Any, device: Any = None, **options: Any) -> torch.Tensor:
    """The tensor on the device, if that is what is asked for by name."""
    if given == (tensor.dtype,) and device is None and not options:
        return tensor
    if not isinstance(device, Name):
        device = {} if device is None else {"device": device}
        return _torch_to(tensor, *given, **device, **options)
    given = _torch_to(tensor, *given, **options) if given or options else tensor
    return given if isinstance(given, OnFake) else on_fake(given)


def _is_autocast_enabled(*kind: str) -> bool:
    """Whether torch casts on this kind of device, of which it does not know the tests'."""
    return kind != ("fake",) and _torch_autocast(*kind)


def device() -> FakeDevice:
    """The device that is installed."""
    found = devices.of(torch.empty(0).as_subclass(OnFake))
    assert isinstance(found, FakeDevice)
    return found


def on_fake(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device."""
    return tensor.detach().clone().as_subclass(OnFake)


def module_on_fake(module: torch.nn.Module) -> torch.nn.Module:
    """Moves a module to the device, where its gradients come as well."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            moved = torch.nn.Parameter(on_fake(parameter), parameter.requires_grad)
            moved.register_post_accumulate_grad_hook(_gradient_on_fake)
            setattr(part, name, moved)
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, on_fake(buffer))
    return module


def _gradient_on_fake(parameter: torch.Tensor) -> None:
    # Autograd makes it beneath the classes of tensors.
    parameter.grad = parameter.grad.as_subclass(OnFake)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as it is now, whatever streams have not done yet."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
