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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sumpter._core.handles import Handle, RoundHandle
from sumpter._core.process_sets import ProcessSet, global_process_set, label
from sumpter._core.session import Session
from sumpter._core.tensor import UNNAMED_SLOTS as SLOTS
from sumpter._core.tensor import Tensor
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
        self.in_flight: deque[tuple[int, RoundHandle]] = deque()
        # The call whose owner has not waited for it yet. A name is taken until then, and not only
        # until the operation is done: whether it may be used again must not depend on timing.
        self.owned: int | None = None

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
                # Raised by the handle of the operation; names do not change.
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

    def note(self, handle: RoundHandle) -> None:
        """Takes a round of the operation into account for the next call of its series."""
        if self.series is not None:
            self.series.in_flight.append((self.call, handle))

    def own(self) -> Callable[[], None] | None:
        """Takes the name until what this returns is called, by the handle of the operation."""
        series, call = self.series, self.call
        if series is None:
            return None
        series.owned = call

        def free() -> None:
            if series.owned == call:
                series.owned = None

        return free


class Operation:
    """The calls of one description: under one name, or matched by their order in a process set.

    Holds what is the same in all of them. `detail` is what must agree across ranks besides the
    tensor: the reduction or the root. A name may be used for another tensor in each call, but only
    when its last operation has been waited for.
    """

    def __init__(
        self,
        session: Session,
        kind: str,
        name: str | None,
        dtype: str,
        shape: Sequence[int],
        detail: str,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        among = label(process_set)
        self._session = session
        self._call = describe(kind, dtype, shape, detail)
        self._is_named = name is not None
        if name is not None:
            self._own = self._place = f"{kind}.{name}{among}"
        else:
            self._place = f"unnamed{among}"
            size = "x".join(map(str, shape)) or "scalar"
            self._own = f"{kind}.noname.{dtype}.{size}.{detail}{among}"
        self._series = _series_of(session, self._place)
        # Declared for these calls, by name.
        self.tensors: dict[str, Tensor] = {}

    def next(self) -> Identity:
        """The identity of the next call; raises what went wrong with a call not waited for."""
        session, series = self._session, self._series
        if session.await_failures is not None:
            session.await_failures()
        if session.late is not None:
            session.raise_late()
        if series.in_flight:
            series.settle()
        if not self._is_named:
            return _next(series, self._place, f"{self._own}.{series.count % SLOTS}", self._call)
        if series.in_flight or series.owned is not None:
            raise DuplicateNameError(
                f"an operation named {self._place!r} is still in flight on rank {session.rank}: "
                "synchronize it first, or give the two different names"
            )
        known = series.kinds.setdefault(self._call, len(series.kinds))
        own = f"{self._own}~{known}" if known else self._own
        return _next(series, self._place, own, self._call)


def identify(
    session: Session,
    kind: str,
    name: str | None,
    dtype: str,
    shape: Sequence[int],
    detail: str,
    process_set: ProcessSet = global_process_set,
) -> Identity:
    """The identity of one call of an `Operation`."""
    return Operation(session, kind, name, dtype, shape, detail, process_set).next()


def describe(kind: str, dtype: str, shape: Sequence[int], detail: str) -> str:
    """A call as error messages show it, such as "allreduce(float32 [3, 4], sum)"."""
    return f"{kind}({dtype} {list(shape)}, {detail})"


def identify_call(session: Session, place: str, own: str, call: str) -> Identity:
    """The identity of a call that makes many rounds, which get their names by part().

    All ranks make the calls of a `place` in one order; `call` is what they must agree about.
    """
    session.raise_late()
    series = _series_of(session, place)
    series.settle()
    return _next(series, place, own, call)


def agree(session: Session, identity: Identity, ranks: Sequence[int] | None) -> Handle[None]:
    """Starts waiting until every rank has made this call; fails on all if the calls differ.

    It comes before rounds in which not all ranks take part, or not as many on each: a rank could
    wait for ever in one of them.
    """
    round_ = session.barrier(f"{identity.name}.agree", ranks, identity.tag)
    identity.note(round_)
    return Handle(round_, lambda: None)


Known = dict[str, tuple[int, int | None, dict[str, int]]]


def forget(session: Session) -> Known:
    """Takes away what is known of each place: its calls, the last failure, what it was used for."""
    session.operations.clear()
    places = _series.pop(session, {})
    for series in places.values():
        series.settle()
    return {place: (s.count, s.failed, s.kinds) for place, s in places.items()}


def learn(session: Session, known: list[Known]) -> None:
    """Goes on from what the rank that has made the most calls of a place knows of it."""
    _series[session] = {}
    for place in {place for each in known for place in each}:
        series = Series()
        states = [each[place] for each in known if place in each]
        series.count, series.failed, series.kinds = max(states, key=lambda state: state[0])
        _series[session][place] = series


def _series_of(session: Session, place: str) -> Series:
    places = _series.setdefault(session, {})
    series = places.get(place)
    if series is None:
        series = places[place] = Series()
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
