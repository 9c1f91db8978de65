"""Calls of NVIDIA's driver for which frameworks have no function of their own.

Two things that let the host and a stream wait for each other while neither needs the driver: a
stream that waits for a word of host memory, and a function that a stream calls. Between the two no
call can be stuck behind one of another thread that waits for the device, such as cudaFree or a copy
of pageable memory. Both ends are in the core, since a thread may hold the interpreter while it is
stuck, when it frees an event or memory of the device.

The driver's library is loaded at run time, by the name under which the framework has loaded it.
"""

import ctypes
import threading
from collections.abc import Callable

from sumpter import _native
from sumpter._core.streams import HostMemory

LIBRARY = "libcuda.so.1"

# CU_STREAM_WAIT_VALUE_GEQ: until the word, less the value, is not negative as a signed number.
WAIT_GEQ = 0

WORD_BYTES = 4
# Of words; a page lasts for as many slices in flight that streams wait for.
PAGE_WORDS = 1024

# A function is not called any more when the device's context has failed.
CHECK_EVERY_S = 5.0


class Driver:
    """The calls of the driver's library that are used.

    Raises OSError without such a library, AttributeError if it is too old (CUDA 11.7 has all).
    """

    def __init__(self, library: str = LIBRARY) -> None:
        loaded = ctypes.CDLL(library)
        self._error_name = loaded.cuGetErrorName
        self._error_name.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        # (stream, address, value, flags)
        self._wait_value = loaded.cuStreamWaitValue32_v2
        self._wait_value.argtypes = [
            ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint,
        ]  # fmt: skip
        # (stream, function, what it is given)
        self._launch = loaded.cuLaunchHostFunc
        self._launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        # (the device's address, the host's, flags)
        self._device_pointer = loaded.cuMemHostGetDevicePointer_v2
        self._device_pointer.argtypes = [
            ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p, ctypes.c_uint,
        ]  # fmt: skip

    def wait_value(self, stream: int, address: int, value: int) -> None:
        """Lets `stream` wait until the word at the device's `address` is `value` or has passed it.

        Passed means by less than 2^31, so that values may wrap.
        """
        self._check("cuStreamWaitValue32", self._wait_value(stream, address, value, WAIT_GEQ))

    def reach(self, stream: int, arrival: _native.Arrival) -> None:
        """Lets `arrival` happen when `stream` comes here, in a thread of the driver."""
        function, given = arrival.host_function()
        status = self._launch(stream, function, given)
        if status:
            arrival.take_back(given)
        self._check("cuLaunchHostFunc", status)

    def device_address(self, address: int) -> int:
        """Where the device finds pinned host memory."""
        found = ctypes.c_uint64()
        status = self._device_pointer(ctypes.byref(found), address, 0)
        self._check("cuMemHostGetDevicePointer", status)
        return found.value

    def _check(self, what: str, status: int) -> None:
        if status:
            name = ctypes.c_char_p()
            self._error_name(status, ctypes.byref(name))
            raise RuntimeError(f"{what} of the CUDA driver: {(name.value or b'').decode()}")


class Arrival:
    """A point in a stream for which a thread can wait without a call of the driver.

    `point` is the core's; `query` raises if the device has failed.
    """

    # After the waiting threads were released, for other streams; set by what makes the arrival.
    passed: object

    def __init__(self, query: Callable[[], object], point: _native.Arrival) -> None:
        self._ask = query
        self._point = point
        self._error: BaseException | None = None
        self._check = threading.Thread(target=self._query)

    def synchronize(self) -> None:
        """Blocks until the stream has come so far; raises if the device has failed."""
        while not self._point.wait(CHECK_EVERY_S):
            # In another thread, since it calls the driver.
            if not self._check.is_alive():
                self._check = threading.Thread(target=self._query, daemon=True)
                self._check.start()
        if self._error is not None:
            raise self._error

    def _query(self) -> None:
        try:
            self._ask()
        except BaseException as error:
            self._error = error
            self._point.give_up()


class Gate:
    """What streams wait for until the host opens it."""

    def __init__(self, gates: "Gates", word: "_Word") -> None:
        self._gates = gates
        self._word = word
        self._value = word.next_value()

    def hold(self, stream: int) -> None:
        """Lets what is enqueued in the driver's `stream` from now on wait until open()."""
        self._gates.driver.wait_value(stream, self._word.device_address, self._value)

    @property
    def word(self) -> tuple[int, int]:
        """The address of the word, and the value that opens the gate when it is stored there."""
        return self._word.address, self._value

    def open(self) -> None:
        """Lets the streams go on. To be called once, by any thread; calls no driver."""
        self._word.store(self._value)
        self.opened()

    def opened(self) -> None:
        """Instead of open(), once the core has opened it."""
        # Values only grow, so that a stream that comes late to this one passes all the same.
        self._gates.take_back(self._word)


class Gates:
    """Makes gates from words of pinned host memory, which are used again."""

    def __init__(self, driver: Driver, host_memory: Callable[[int], HostMemory]) -> None:
        self.driver = driver
        self._host_memory = host_memory
        self._pages: list[HostMemory] = []
        # Without a lock: it would be held while a page is made, which calls the driver, and opening
        # a gate must not wait for the driver.
        self._free: list[_Word] = []

    def make(self) -> Gate:
        """A gate that is shut."""
        try:
            word = self._free.pop()
        except IndexError:
            word, *rest = self._make_page()
            self._free.extend(rest)
        return Gate(self, word)

    def take_back(self, word: "_Word") -> None:
        """Gives the word to the next gate."""
        self._free.append(word)

    def _make_page(self) -> list["_Word"]:
        page = self._host_memory(PAGE_WORDS * WORD_BYTES)
        ctypes.memset(page.address, 0, page.size)
        self._pages.append(page)
        host, device = page.address, self.driver.device_address(page.address)
        offsets = range(0, PAGE_WORDS * WORD_BYTES, WORD_BYTES)
        return [_Word(host + offset, device + offset) for offset in offsets]


class _Word:
    """A word that the host writes and the device reads."""

    def __init__(self, address: int, device_address: int) -> None:
        self.address, self.device_address = address, device_address
        self._memory = ctypes.c_uint32.from_address(address)
        self._last = 0

    def next_value(self) -> int:
        self._last = (self._last + 1) & 0xFFFFFFFF
        return self._last

    def store(self, value: int) -> None:
        # One aligned store. The results are in memory already: the core's thread that wrote them
        # has notified this thread through a lock.
        self._memory.value = value


def load() -> Driver | None:
    """The driver, if there is one that can do all this."""
    try:
        return Driver()
    except (OSError, AttributeError):
        return None
