"""Calls that this rank cannot make: an error on all ranks, and not a wait for this one.

A front checks what it is given before anything of a call begins. What it refuses then, the other
ranks may have begun already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from sumpter._calls import collective as kinds
from sumpter._calls.collective import Collective
from sumpter._core import membership, names
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._errors import ConfigError, SumpterError, UnsupportedError

# What the names of a call's arrays end with.
Parts = Iterable[str]

ONE: Parts = ("",)

Item = TypeVar("Item")


class Waitable(Protocol):
    """A call that has begun."""

    def synchronize(self) -> object: ...


Begun = TypeVar("Begun", bound=Waitable)


class Checking:
    """Within it a call is checked: what is raised there is raised on all ranks of the set.

    The others get a MismatchError with this rank and the reason. Nothing of the call may begin
    before the block ends. `parts` are looked at only if something is wrong. `endings` are what the
    names of the first rounds end with that the other ranks begin, where `kind` does not say.
    """

    def __init__(
        self,
        kind: str,
        name: str | None,
        process_set: ProcessSet = global_process_set,
        parts: Parts | Callable[[], Parts] = ONE,
        endings: Sequence[str] | None = None,
    ) -> None:
        self._call = kind, name, process_set
        self._parts, self._endings = parts, endings

    @classmethod
    def of(cls, collective: Collective) -> Self:
        """The checks of a call that is described already."""
        return cls(*collective.series(), collective.paths)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            refuse(*self._call, error, self._parts, self._endings)


def refuse(
    kind: str,
    name: str | None,
    process_set: ProcessSet,
    error: Exception,
    parts: Parts | Callable[[], Parts] = ONE,
    endings: Sequence[str] | None = None,
) -> None:
    """Says to the other ranks of a set that this one cannot make a call, as its error says.

    Returns when they are told. What went wrong with the job, or with calls before, is no news.
    """
    if isinstance(error, SumpterError) and not isinstance(error, (UnsupportedError, ConfigError)):
        return
    session = membership.peek()
    if session is None or not isinstance(name, str | None):
        return
    reason = str(error) if isinstance(error, SumpterError) else f"{type(error).__name__}: {error}"
    # Whatever goes wrong here, what the caller must see is its own error.
    with contextlib.suppress(Exception):
        ranks = members(process_set)
        known = parts() if callable(parts) else parts
        rounds = [
            names.refuse(
                *(session, kind, None if name is None else f"{name}{path}", reason, process_set),
                _endings(kind, ranks) if endings is None else endings,
            )
            for path in known
        ]
        for round_ in rounds:
            with contextlib.suppress(SumpterError):
                if round_ is not None:
                    round_.wait()


def numbered(count: int, begin: int = 0) -> list[str]:
    """The parts of a call on several arrays, from the one at `begin` on."""
    return [f".{index}" for index in range(begin, count)]


def begin_each(
    kind: str,
    name: str | None,
    process_set: ProcessSet,
    items: Sequence[Item],
    begin: Callable[[Item, str | None], Begun],
) -> list[Begun]:
    """Begins a call for each of several arrays, with names of their own.

    Where one is refused, those behind it do not begin and fail on the other ranks as well, and
    those before it, whose results the caller will not get, are waited for.
    """
    handles: list[Begun] = []
    for index, item in enumerate(items):
        try:
            handles.append(begin(item, None if name is None else f"{name}.{index}"))
        except Exception as error:
            refuse(kind, name, process_set, error, numbered(len(items), index + 1))
            for handle in handles:
                with contextlib.suppress(Exception):
                    handle.synchronize()
            raise
    return handles


def _endings(kind: str, ranks: Sequence[int]) -> list[str]:
    """What the names of the rounds end with that other ranks begin for an array."""
    if kind == kinds.REDUCE_SCATTER:
        return [".agree", *(f".{root}" for root in ranks)]
    if kind == kinds.ALL_TO_ALL:
        return [f".{root}.to.{other}" for root in ranks for other in ranks if root != other]
    if kind in (kinds.ALL_GATHER, kinds.EXCHANGE_ROWS):
        return [".sizes"]
    return [""]
