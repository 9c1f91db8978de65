"""The calls of NVIDIA's driver, against a library with the declarations of its own header."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sumpter import _native
from sumpter._core import cuda_driver
from sumpter._core.cuda_driver import Arrival, Driver, Gates
from sumpter._core.streams import HostMemory
from sumpter.torch.devices import TorchDevice

HANG_S = 120.0
INVALID_CONTEXT = 201
SHIFT = 0x100000


def find_header() -> Path | None:
    """The header that comes with torch's libraries for CUDA."""
    folders = [Path(folder) / "nvidia" for folder in sys.path]
    return next((found for f in folders for found in f.glob("*/include/cuda.h")), None)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    header, compiler = find_header(), shutil.which("cc")
    if header is None or compiler is None:
        pytest.skip("needs cuda.h (of torch's CUDA libraries) and a C compiler")
    built = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("workers") / "driver_stub.c"
    command = [compiler, "-shared", "-fPIC", "-Werror", f"-I{header.parent}", str(source)]
    subprocess.run([*command, "-o", str(built), "-lpthread"], check=True)
    return built


class Stub:
    """The library as the tests look at it."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self.passes = self._library.passes

    def see(self, name: str, kind: type = ctypes.c_uint64) -> int:
        return kind.in_dll(self._library, name).value

    def fail(self, status: int) -> None:
        ctypes.c_int.in_dll(self._library, "outcome").value = status


@pytest.fixture
def stub(library: Path) -> Iterator[Stub]:
    stub = Stub(library)
    yield stub
    # The library stays loaded for the tests that come after this one.
    stub.fail(0)


def plain_memory(size: int) -> HostMemory:
    memory = np.full(size, 0xA5, dtype=np.uint8)
    return HostMemory(memory.ctypes.data, size, memory)


def test_streams_wait_until_a_gate_opens(library: Path, stub: Stub) -> None:
    gates, stream = Gates(Driver(str(library)), plain_memory), 0x7FF1
    for _ in range(3 * cuda_driver.PAGE_WORDS):
        gate = gates.make()
        gate.hold(stream)
        assert stub.see("waited_stream") == 0x7FF1
        assert not stub.passes()
        gate.open()
        assert stub.passes()
    # One after the other needs one word.
    assert len(gates._pages) == 1


def test_who_comes_late_to_a_gate_passes(library: Path, stub: Stub) -> None:
    gates, stream = Gates(Driver(str(library)), plain_memory), 1
    late = gates.make()
    late.open()
    others = [gates.make() for _ in range(2 * cuda_driver.PAGE_WORDS)]
    late.hold(stream)
    assert stub.passes()
    places = set()
    for gate in others:
        gate.hold(stream)
        places.add(stub.see("waited_address"))
        assert not stub.passes()
    assert len(places) == len(others)


def test_values_wrap(library: Path, stub: Stub) -> None:
    gates, stream = Gates(Driver(str(library)), plain_memory), 1
    gates.make().open()
    word = gates._free[-1]
    word._last = 0xFFFFFFFE
    word.store(word._last)
    for expected in (0xFFFFFFFF, 0, 1):
        gate = gates.make()
        gate.hold(stream)
        assert stub.see("waited_value", ctypes.c_uint32) == expected and not stub.passes()
        gate.open()
        assert stub.passes()


def test_the_device_may_see_host_memory_elsewhere(library: Path) -> None:
    memory = plain_memory(64)
    address = memory.address
    assert Driver(str(library)).device_address(address) == address + SHIFT


def test_a_stream_lets_a_point_happen(library: Path, stub: Stub) -> None:
    opened, points = Driver(str(library)), [_native.Arrival() for _ in range(20)]
    assert not points[0].wait(0)
    for point in points:
        opened.reach(0x7FF2, point)
    assert all(point.wait(HANG_S) for point in points)
    assert stub.see("launched_stream") == 0x7FF2


def test_a_point_happens_while_no_thread_has_the_interpreter(library: Path, stub: Stub) -> None:
    opened, point = Driver(str(library)), _native.Arrival()
    # Calls of PyDLL keep the interpreter: the driver's thread has to do without.
    kept = ctypes.PyDLL(str(library)).happens_while_this_waits
    function, given = point.host_function()
    assert kept(ctypes.c_void_p(function), ctypes.c_void_p(given))
    assert point.wait(0)
    opened.reach(1, point)


def test_what_is_taken_back_is_not_called(library: Path, stub: Stub) -> None:
    opened, point = Driver(str(library)), _native.Arrival()
    stub.fail(INVALID_CONTEXT)
    with pytest.raises(RuntimeError, match="cuLaunchHostFunc"):
        opened.reach(1, point)
    with pytest.raises(_native.ConfigError, match=r"host_function"):
        point.take_back(8)
    assert not point.wait(0.01)
    point.give_up()
    assert point.wait(0)


def test_errors_name_the_call_and_what_the_driver_says(library: Path, stub: Stub) -> None:
    opened = Driver(str(library))
    stub.fail(INVALID_CONTEXT)
    with pytest.raises(RuntimeError, match=r"cuStreamWaitValue32 .*: CUDA_ERROR_INVALID_CONTEXT"):
        opened.wait_value(1, 2, 3)
    with pytest.raises(RuntimeError, match=r"cuLaunchHostFunc .*: CUDA_ERROR_INVALID_CONTEXT"):
        opened.reach(1, _native.Arrival())
    with pytest.raises(RuntimeError, match="cuMemHostGetDevicePointer"):
        opened.device_address(1)


def test_who_waits_for_an_arrival_hears_that_the_device_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def query() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(cuda_driver, "CHECK_EVERY_S", 0.01)
    arrival = Arrival(query, _native.Arrival())
    with pytest.raises(RuntimeError, match="illegal memory access"):
        arrival.synchronize()


def test_who_waits_for_an_arrival_never_waits_for_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck, asked = threading.Event(), []

    def query() -> bool:
        asked.append(threading.current_thread())
        assert stuck.wait(HANG_S)
        return True

    monkeypatch.setattr(cuda_driver, "CHECK_EVERY_S", 0.01)
    point = _native.Arrival()
    arrival = Arrival(query, point)
    threading.Timer(0.1, point.happen).start()
    arrival.synchronize()
    assert len(asked) == 1 and asked[0] is not threading.current_thread()
    stuck.set()


def test_without_the_library_streams_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "Driver", lambda: Driver("libnowhere.so.1"))
    assert cuda_driver.load() is None
    # A library without the functions is as good as none.
    monkeypatch.setattr(cuda_driver, "Driver", lambda: Driver("libc.so.6"))
    assert cuda_driver.load() is None


class Played:
    """What torch.cuda offers, as far as a device is set up with it."""

    def __init__(self) -> None:
        self.streams: list[SimpleNamespace] = []
        self.entered: list[SimpleNamespace] = []

    def Stream(self, device: torch.device) -> SimpleNamespace:  # noqa: N802 - torch's name
        waits: list[object] = []
        number = 0x1000 + len(self.streams)
        stream = SimpleNamespace(cuda_stream=number, waits=waits, wait_event=waits.append)
        self.streams.append(stream)
        return stream

    def Event(self, blocking: bool) -> SimpleNamespace:  # noqa: N802 - torch's name
        assert blocking
        recorded: list[object] = []
        return SimpleNamespace(record=recorded.append, recorded=recorded, query=lambda: True)

    @contextlib.contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        self.entered.append(stream)
        yield


@pytest.fixture
def played(library: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Played:
    module = Played()
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(cuda_driver, "load", lambda: Driver(str(library)))
    monkeypatch.setattr(TorchDevice, "host_memory", lambda _, count: plain_memory(count))
    return module


def test_a_device_tries_what_it_needs(played: Played, stub: Stub) -> None:
    device = TorchDevice(torch.device("cuda", 0))
    assert device.streams_wait
    out, back, _within, calls = played.streams
    assert stub.see("waited_stream") == back.cuda_stream and stub.passes()
    assert stub.see("launched_stream") == calls.cuda_stream
    arrival = device.arrival(out)
    arrival.synchronize()
    # The call waits for the stream, and other streams can wait for the call.
    assert calls.waits[-1].recorded == [out] and arrival.passed.recorded == [calls]
    assert played.entered[-1] is calls


def test_a_device_that_refuses_lets_threads_wait(
    played: Played, stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    stub.fail(INVALID_CONTEXT)
    device = TorchDevice(torch.device("cuda", 0))
    assert not device.streams_wait
    assert "streams cannot: cuMemHostGetDevicePointer" in caplog.text
    out = played.streams[0]
    assert device.arrival(out).recorded == [out]
