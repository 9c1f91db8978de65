"""A core for tests of staging, in whose rounds nothing happens before a test says so."""

from __future__ import annotations

import contextlib
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

    def end(self, error: Exception | None = None) -> None:
        """Only the first call does anything."""
        if self.over:
            return
        self._error, self.over = error, True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

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
        self.over = True
        if not self.round.over and self.round.submitted["receive"]:
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

    def refuse(self, reason: str) -> None:
        self._core.refused.append(reason)
        self._round.end(MismatchError(reason))


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
