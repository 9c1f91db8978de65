"""A core for tests of staging, in whose rounds nothing happens before a test says so."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from sumpter._core.session import Session
from sumpter._errors import ClosedError, MismatchError
from sumpter.torch import tensors

HANG_S = 120.0


class Round:
    """A round of the core on a device's memory, whose slices end when a test says so."""

    def __init__(
        self,
        tensor: NativeTensor,
        submitted: dict[str, Any],
        slice_bytes: int,
        on_slice: Callable[[int], object],
    ) -> None:
        self.tensor, self.submitted, self.on_slice = tensor, submitted, on_slice
        # What is sent and what is received.
        self.sent, self.keep = (memory.owner for memory in submitted["keep"])
        parts = zip(self.sent.split(slice_bytes), self.keep.split(slice_bytes), strict=True)
        self.slices = [Slice(self, index, *memory) for index, memory in enumerate(parts)]
        self._callbacks: list[Callable[[], object]] = []
        self._error: Exception | None = None
        self.over = False
        # Of slices: what is stored where when they end.
        self._gates: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def end(self, error: Exception | None = None) -> None:
        """Only the first call does anything."""
        if self.over:
            return
        with self._lock:
            self._error, self.over = error, True
        if error is not None:
            for part in self.slices:
                if self.is_shut(part.index):
                    part.memory.fill_(0xFF)
                    part.watch.failed += 1
                    self.open(part.index)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def hold(self, index: int, gate: tuple[int, int], watch: Any) -> bool:
        with self._lock:
            part = self.slices[index]
            if part.over or (self.over and self._error is not None):
                return False
            self._gates[index], part.watch = gate, watch
            return True

    def is_shut(self, index: int) -> bool:
        return index in self._gates

    def release(self, index: int) -> tuple[int, int] | None:
        with self._lock:
            return self._gates.pop(index, None)

    def open(self, index: int) -> None:
        gate = self.release(index)
        if gate is not None:
            ctypes.c_uint32.from_address(gate[0]).value = gate[1]

    def on_done(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    def wait(self, timeout_s: float | None = None) -> None:
        if self._error is not None:
            raise self._error

    def order(self) -> list[tuple[int, int, int, int]]:
        return [(0, len(self.keep), 4, 7)]


class Slice:
    """A slice of a round, which has been supplied."""

    def __init__(
        self, round_: Round, index: int, source: torch.Tensor, memory: torch.Tensor
    ) -> None:
        self.round, self.index, self.source, self.memory = round_, index, source, memory
        self.sent = b""
        self.over = False
        self.watch: Any = None

    def supply(self) -> None:
        # What the core would have sent.
        self.sent = bytes(self.source.tolist())

    def end(
        self, error: Exception | None = None, result: int | None = None, last: bool = True
    ) -> None:
        """The slice is final, or the round has failed. It is over with the `last` slice."""
        if error is not None:
            self.round.end(error)
            return
        if result is not None:
            self.memory.fill_(result)
        with self.round._lock:
            self.over = True
        if not self.round.over and self.round.submitted["receive"]:
            self.round.open(self.index)
            self.round.on_slice(self.index)
        if last and all(part.over for part in self.round.slices):
            self.round.end()


class Supply:
    """As the core's: what it is told to supply."""

    def __init__(self, core: Core, round_: Round) -> None:
        self._core, self._round = core, round_

    def supply(self, start: int, size: int) -> None:
        (part,) = (p for p in self._round.slices if p.source.storage_offset() == start)
        assert len(part.memory) == size
        part.supply()
        self._core.supplied([part])

    def arrival(self, start: int, size: int) -> Arrival:
        return Arrival(lambda: self.supply(start, size))

    def hold(self, slice: int, memory: tuple[int, int], gate: tuple[int, int], watch: Any) -> bool:
        part = self._round.slices[slice].memory
        assert memory == (part.data_ptr(), len(part))
        return self._round.hold(slice, gate, watch)

    def release(self, slice: int) -> bool:
        return self._round.release(slice) is not None

    def refuse(self, reason: str) -> None:
        self._core.refused.append(reason)
        self._round.end(MismatchError(reason))


class GateWatch:
    """As the core's."""

    failed = 0


class Arrival:
    """As the core's: what happens once."""

    def __init__(self, supply: Callable[[], object]) -> None:
        self._supply = [supply]

    def happen(self) -> None:
        while self._supply:
            self._supply.pop()()


class NativeTensor:
    """A tensor as it was declared to the worker."""

    is_empty = False

    def __init__(
        self, core: Core, name: str, collective: str, shape: tuple[int, ...], dtype: str, op: str
    ) -> None:
        self._core = core
        self.name, self.shape = name, shape
        self.kind = (collective, dtype, op)

    def submit(self, *_: object) -> None:
        raise AssertionError("memory of a device is staged")

    def submit_staged(
        self,
        send: int,
        receive: int,
        priority: int,
        tag: str,
        keep: object,
        slice_bytes: int,
        on_slice: Callable[[int], object],
        update: object = None,
        order: object = None,
        rescale: float = 1.0,
    ) -> tuple[Round, Supply]:
        submitted = {"tag": tag, "send": send, "receive": receive, "priority": priority}
        submitted |= {"keep": keep, "update": update, "order": order}
        round_ = Round(self, submitted, slice_bytes, on_slice)
        self._core.start(round_)
        if not send:
            self._core.supplied(round_.slices)
        return round_, Supply(self._core, round_)

    def submit_staged_deferred(self, *given: Any) -> tuple[Round, Supply, str]:
        return (*self.submit_staged(*given), "a decision")


class Worker:
    """A worker whose tensors' rounds are the core's."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.compression, self.compression_min_bytes = "", 0
        self.local_size = core.local_size

    def declare(
        self,
        name: str,
        collective: str,
        shape: tuple[int, ...],
        dtype: str,
        op: str,
        **rest: object,
    ) -> NativeTensor:
        assert (rest["root"], rest["average"], rest["ranks"]) == (0, False, None)
        return NativeTensor(self._core, name, collective, shape, dtype, op)

    def shutdown(self) -> None:
        self._core.shutdown()


class Core:
    """A session whose rounds wait for the test."""

    def __init__(self) -> None:
        self.local_size = 2
        self.around_close: list[Callable[[], contextlib.AbstractContextManager[None]]] = []
        self.late: BaseException | None = None
        self.await_failures: Callable[[], None] | None = None
        self.begun: list[tuple[Any, float]] | None = None
        self.worker = Worker(self)
        self._declared: dict[Any, Any] = {}
        self.restored: dict[str, Any] = {}
        self.closed = False
        self.rank, self.world_size = 1, 2
        self.rounds: list[Round] = []
        # What has been supplied of them, in that order, and why no more will be.
        self.slices: list[Slice] = []
        self.refused: list[str] = []
        self._changed = threading.Condition()

    def start(self, round_: Round) -> None:
        if self.closed:
            raise ClosedError("the session was shut down")
        self.rounds.append(round_)

    def supplied(self, slices: list[Slice]) -> None:
        with self._changed:
            self.slices.extend(slices)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[Slice]:
        """What has been supplied, once that is `count` slices."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.slices) >= count, HANG_S)
        return self.slices

    declare = Session.declare
    raise_late = Session.raise_late

    def shutdown(self) -> None:
        """All rounds fail, as the worker's do."""
        self.closed = True
        for round_ in self.rounds:
            round_.end(ClosedError("the session was shut down"))

    def close(self) -> None:
        with contextlib.ExitStack() as around:
            for enter in self.around_close:
                around.enter_context(enter())
            self.closed = True
            for part in self.slices:
                if not part.over:
                    part.end()
            # What was not supplied.
            self.shutdown()


def start(
    core: Core, send: torch.Tensor | None, receive: torch.Tensor | None, kind: str = "all_reduce"
) -> Any:
    memory = send if receive is None else receive
    declared = core.declare("x", kind, memory.shape, "uint8", "max")
    return tensors.start_round(declared, send, receive, priority=3, tag="tag")


def numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.uint8)


def start_update(core: Core, gradient: torch.Tensor, value: torch.Tensor, **given: Any) -> Any:
    declared = core.declare("v", "update", gradient.shape, "uint8", rule="sgd", **given)
    return tensors.start_round(declared, gradient, value, update=[1.0], order=[(0, 40, 1, 2)])
