"""Calls of compiled programs, which start rounds where an array is there and wait for them later.

The program holds a text for each array, since it may be kept and run by another process, and passes
the addresses of its memory. What is started has a number until the program waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import time
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np

from sumpter import _native
from sumpter._calls.collective import Collective, Front
from sumpter._calls.rounds import Begun, begin, begin_barrier, failed, finish
from sumpter._core import callbacks, membership
from sumpter._core.handles import RoundHandle
from sumpter._core.process_sets import find, global_process_set
from sumpter._core.reduction import ReduceOp
from sumpter._core.session import Session
from sumpter._errors import ClosedError, SumpterError

# How long the thread of a program waits for rounds before it goes on with what needs no result:
# about as long as it takes until other threads have ended the call.
HANDOVER_S = 200e-6


GONE = failed(ClosedError("the job has ended in which the program had begun this"))


class _Part(NamedTuple):
    """One array of a call."""

    collective: Collective
    shape: tuple[int, ...]
    dtype: np.dtype


def describe(collective: Collective, index: int, shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """The text of one array of a call."""
    return _encode(collective.part(index), shape, dtype.name)


def describe_barrier(collective: Collective) -> bytes:
    """The text of a call without arrays."""
    return _encode(collective, (), "uint8")


def _encode(collective: Collective, shape: tuple[int, ...], dtype: str) -> bytes:
    fields = {
        "kind": collective.kind,
        "paths": collective.paths,
        "name": collective.name,
        "op": collective.op.value,
        "root": collective.root,
        "ranks": collective.process_set.ranks,
        "size": collective.size,
        "codecs": collective.codecs,
        "shape": shape,
        "dtype": dtype,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


class Programs:
    """What the compiled programs of a framework start, and have not waited for yet."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._parts: dict[bytes, _Part] = {}
        self._started: dict[int, Begun] = {}
        # Of what has been started. What a program has started and never waited for, because
        # something else in it failed, is forgotten with the session.
        self._session: Session | None = None
        self._lock = Lock()
        self._numbers = itertools.count(1)

    def start(self, text: bytes, address: int) -> int:
        """Starts the rounds of the array at an address, of which a copy is taken; their number."""
        session = membership.peek()
        with self._lock:
            # Threads of XLA start several arrays of a program at once.
            if session is not self._session:
                self._session, self._started = session, {}
        part = self._part(text)
        begun = begin(part.collective, 0, _array_at(address, part.shape, part.dtype))
        number = next(self._numbers)
        self._started[number] = begun
        return number

    def finish(
        self,
        text: bytes,
        numbers: Sequence[int],
        addresses: Sequence[int],
        promise: _native.XlaPromise | None,
    ) -> None:
        """Puts the results of rounds where they belong; for a barrier there is a text.

        Without a `promise` it blocks, and raises what went wrong.
        """
        begun = [self._started.pop(number, GONE) for number in numbers]
        if text:
            begun = [begin_barrier(self._part(text).collective)]
        if promise is None:
            _deliver(begun, addresses)
        else:
            _Conclusion(begun, addresses, promise).follow()

    def _part(self, text: bytes) -> _Part:
        part = self._parts.get(text)
        # A process set of that number may be another one in another job.
        if part is None or part.collective.process_set is not global_process_set:
            fields = json.loads(text)
            collective = Collective(
                self._front,
                fields["kind"],
                tuple(fields["paths"]),
                fields["name"],
                ReduceOp(fields["op"]),
                fields["root"],
                find(fields["ranks"]),
                fields["size"],
                tuple(fields["codecs"]),
            )
            part = _Part(collective, tuple(fields["shape"]), np.dtype(fields["dtype"]))
            self._parts[text] = part
        return part


class _Conclusion:
    """Ends a call of a program once all its rounds have ended."""

    def __init__(
        self, begun: list[Begun], addresses: Sequence[int], promise: _native.XlaPromise
    ) -> None:
        self._begun, self._addresses, self._promise = begun, addresses, promise
        self._rounds = [round_ for one in begun for round_ in one.rounds]
        self._left = len(self._rounds)
        self._lock = Lock()

    def follow(self) -> None:
        """Ends it at once, or when the last round calls."""
        if _are_over(self._rounds):
            self._conclude()
            return
        for round_ in self._rounds:
            round_.on_done(self._one_less)

    def _one_less(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            # The rest of the program may run in the thread that ends the call.
            callbacks.run(self._conclude)

    def _conclude(self) -> None:
        try:
            _deliver(self._begun, self._addresses)
        except BaseException as error:
            self._promise.fail(f"{type(error).__name__}: {error}")
        else:
            self._promise.set()


def _are_over(rounds: Sequence[RoundHandle]) -> bool:
    """Whether rounds have ended, at once or within the time that another thread would take."""
    end = time.monotonic() + HANDOVER_S
    for round_ in rounds:
        if not round_.poll():
            # What has gone wrong is raised where the results are taken.
            with contextlib.suppress(SumpterError):
                round_.wait(max(0.0, end - time.monotonic()))
        if not round_.poll():
            return False
    return True


def _deliver(begun: Sequence[Begun], addresses: Sequence[int]) -> None:
    results = finish(begun)
    # A barrier has no result.
    for result, address in zip(results, addresses, strict=False):
        np.copyto(_array_at(address, result.shape, result.dtype), result)


def _array_at(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The memory of a program as an array."""
    array = np.empty(0, dtype) if 0 in shape else None
    if array is None:
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        memory = (ctypes.c_uint8 * size).from_address(address)
        array = np.frombuffer(memory, np.uint8).view(dtype)
    return array.reshape(shape)
