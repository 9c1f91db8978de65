"""Under which name an operation meets the other ranks' operations.

The core knows a tensor by its name, with one shape, element type and operation for the whole job.
Scripts use a name for whatever they like, if all ranks do so alike, or give none at all. So each
thing that a name is used for gets a name of its own in the core. Every call has a tag as well, with
its number among the calls of its series and what it looks like, by which the coordinator finds
ranks that made different calls.

After calls that did not match, a series goes on under new names: the core has given up the old.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sumpter._core.process_sets import ProcessSet, global_process_set, label
from sumpter._core.session import UNNAMED_SLOTS, Handle, Session
from sumpter._errors import DuplicateNameError, MismatchError, SumpterError


class Series:
    """The calls of one name, or those without a name in one process set."""

    def __init__(self) -> None:
        self.count = 0
        # The last call in which ranks disagreed, as far as this rank has seen. Where one has seen
        # less than the others, the next call does not match either, and they agree again.
        self.failed: int | None = None
        # What the calls looked like since then, in the order in which they first appeared.
        self.kinds: dict[str, int] = {}
        self.in_flight: deque[tuple[int, Handle]] = deque()

    def settle(self) -> None:
        """Forgets the operations that are done, up to the first that is not."""
        while self.in_flight and self.in_flight[0][1].poll():
            call, handle = self.in_flight.popleft()
            try:
                handle.wait()
            except MismatchError:
                self.failed = call
                self.kinds.clear()
            except SumpterError:
                # Whoever waits for the operation is told; names do not change.
                continue


class Identity(NamedTuple):
    """Under which name an operation is matched with the other ranks' operations."""

    name: str
    tag: str = ""
    series: Series | None = None
    call: int = 0

    def part(self, suffix: object) -> Identity:
        """The identity of one of the rounds that the operation consists of."""
        return self._replace(name=f"{self.name}.{suffix}")

    def note(self, handle: Handle) -> None:
        """Takes a round of the operation into account for the next call of its series."""
        if self.series is not None:
            self.series.in_flight.append((self.call, handle))


def identify(
    session: Session,
    kind: str,
    name: str | None,
    dtype: str,
    shape: Sequence[int],
    detail: str,
    process_set: ProcessSet = global_process_set,
) -> Identity:
    """The identity of a named operation, or of one matched by the order of calls in its set.

    `detail` is what must agree across ranks besides the tensor: the reduction or the root. A name
    may be used for another tensor in each call, but only when its last operation is done.
    """
    among = label(process_set)
    call = describe(kind, dtype, shape, detail)
    if name is not None:
        place = f"{kind}.{name}{among}"
        series = _settled(session, place)
        if series.in_flight:
            raise DuplicateNameError(
                f"an operation named {place!r} is still in flight on rank {session.rank}: "
                "synchronize it first, or give the two different names"
            )
        known = series.kinds.setdefault(call, len(series.kinds))
        return _next(series, place, f"{place}~{known}" if known else place, call)
    place = f"unnamed{among}"
    series = _settled(session, place)
    size = "x".join(map(str, shape)) or "scalar"
    slot = series.count % UNNAMED_SLOTS
    own = f"{kind}.noname.{dtype}.{size}.{detail}{among}.{slot}"
    return _next(series, place, own, call)


def describe(kind: str, dtype: str, shape: Sequence[int], detail: str) -> str:
    """A call as error messages show it, such as "allreduce(float32 [3, 4], sum)"."""
    return f"{kind}({dtype} {list(shape)}, {detail})"


def identify_call(session: Session, place: str, own: str, call: str) -> Identity:
    """The identity of a call that makes many rounds, which get their names by part().

    All ranks make the calls of a `place` in one order; `call` is what they must agree about.
    """
    return _next(_settled(session, place), place, own, call)


Known = dict[str, tuple[int, int | None, dict[str, int]]]


def forget(session: Session) -> Known:
    """Takes away what is known of each place: its calls, the last failure, what it was used for."""
    places = _series.pop(session, {})
    for series in places.values():
        series.settle()
    return {place: (s.count, s.failed, s.kinds) for place, s in places.items()}


def learn(session: Session, known: list[Known]) -> None:
    """Goes on from what the rank that has made the most calls of a place knows of it."""
    _series[session] = {}
    for place in {place for each in known for place in each}:
        series = Series()
        told = [each[place] for each in known if place in each]
        series.count, series.failed, series.kinds = max(told, key=lambda one: one[0])
        _series[session][place] = series


def _settled(session: Session, place: str) -> Series:
    """The series of a place, before its next call."""
    session.raise_late()
    series = _series.setdefault(session, {}).setdefault(place, Series())
    series.settle()
    return series


def _next(series: Series, place: str, own: str, call: str) -> Identity:
    number = series.count
    series.count += 1
    if series.failed is not None:
        own = f"{own}!{series.failed}"
        call = f"{call}, after call #{series.failed} failed"
    return Identity(own, f"{place}#{number}|{call}", series, number)


# Names mean nothing outside their session.
_series: weakref.WeakKeyDictionary[Session, dict[str, Series]] = weakref.WeakKeyDictionary()
