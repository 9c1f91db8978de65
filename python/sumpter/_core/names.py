"""Under which name an operation meets the other ranks' operations.

The core knows a tensor by its name, with one shape, element type and operation for the whole job.
Scripts use a name for whatever they like, if all ranks do so alike, or give none at all. So each
thing that a name is used for gets a name of its own in the core. Every call has a tag as well, with
its number among the calls of its series and what it looks like, by which the coordinator finds
ranks that made different calls.

After calls that did not match, a series goes on under new names: the core has given up the old.
A call that a rank cannot make counts as one that does not match; `refuse` says so to the others.
"""

from __future__ import annotations

import contextlib
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sumpter._core.handles import Handle, RoundHandle
from sumpter._core.process_sets import ProcessSet, global_process_set, label, members
from sumpter._core.session import Session
from sumpter._core.tensor import UNNAMED_SLOTS as SLOTS
from sumpter._core.tensor import Tensor
from sumpter._errors import DuplicateNameError, MismatchError, SumpterError

# What the names of sums end with: the core does not ask ranks whether they divide, and a rank that
# averages must not meet one that sums.
SUMS = ":sum"
# What other ranks are shown of why a call was refused: a few lines.
LONGEST_REASON = 600


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
        self._session = session
        self._call = describe(kind, dtype, shape, detail)
        self._is_named = name is not None
        self._own = self._place = _place_of(kind, name, process_set)
        if name is None:
            size = "x".join(map(str, shape)) or "scalar"
            self._own = f"{kind}.noname.{dtype}.{size}.{detail}{label(process_set)}"
        elif detail.partition(" ")[0] == "sum":
            self._own += SUMS
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
        return _next(series, self._place, _of_kind(self._own, known), self._call)


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


def refuse(
    session: Session,
    kind: str,
    name: str | None,
    reason: object,
    process_set: ProcessSet = global_process_set,
    endings: Sequence[str] = ("",),
) -> RoundHandle | None:
    """This rank cannot make its next call of a name, or without one: it fails on all ranks.

    They raise MismatchError with this rank and the `reason`. `endings` are what the names of the
    call's rounds end with, as far as this rank can know them: rounds of these names fail at once,
    all others of the call when the ranks' next two heartbeats have come to the coordinator.

    Returns a round that ends once the coordinator knows. Nothing is refused, and nothing returned,
    where no other rank waits: in a set of one rank or of others, and under a name that is in
    flight, which every rank may use only later.
    """
    ranks = members(process_set)
    place = _place_of(kind, name, process_set)
    series = _series_of(session, place)
    series.settle()
    if len(ranks) == 1 or (name is not None and (series.in_flight or series.owned is not None)):
        return None
    text = f"rank {session.rank} cannot take part: {reason}"[:LONGEST_REASON]
    if name is not None:
        _refuse_names(session, series, place, text, endings)
    # Of the same call as the other ranks' rounds, which the coordinator finds so.
    refused = f"{kind}, which it refused: {reason}"[:LONGEST_REASON]
    identity = _next(series, place, place, refused)
    among = None if process_set is global_process_set else ranks
    round_ = _refused_round(session, identity, text, among)
    identity.note(round_)
    return round_


def share_refusal(
    session: Session, identity: Identity, tensor: Tensor, round_: RoundHandle
) -> None:
    """Says to the other ranks of a tensor's first round if this rank's core refuses it by itself.

    It does so at once, where the codec is none for the element type or for the shape.
    """
    described, series = tensor.description, identity.series
    if not described.compression or tensor.is_alone or not round_.poll():
        return
    try:
        round_.wait()
    except MismatchError as error:
        said = str(error).removeprefix(f"tensor {tensor.name!r}, rank {session.rank}: ")
        text = f"rank {session.rank} cannot take part: {said}"[:LONGEST_REASON]
        session.refuse_name(tensor.name, text)
        place, bar, _ = identity.tag.partition(f"#{identity.call}|")
        if series is not None and bar:
            if tensor.name.startswith(place):
                _refuse_names(session, series, place, text, [""])
            _refused_round(session, identity, text, described.ranks)
    except SumpterError:
        # Of the job, and not of this tensor.
        return


def _refuse_names(
    session: Session, series: Series, place: str, text: str, endings: Sequence[str]
) -> None:
    """Refuses the rounds of the next call of a name, whose call may look like none before."""
    for own in (place, place + SUMS):
        for known in range(len(series.kinds) + 1):
            since = _since_failure(series, _of_kind(own, known))
            for ending in endings:
                session.refuse_name(since + ending, text)


def _refused_round(
    session: Session, identity: Identity, text: str, ranks: Sequence[int] | None
) -> RoundHandle:
    """A round of a call that fails, and with it all others of the call on all ranks."""
    own = identity.part(f"refused.{identity.call}").name
    session.refuse_name(own, text)
    return session.barrier(own, ranks, identity.tag)


def agree(session: Session, identity: Identity, ranks: Sequence[int] | None) -> Handle[None]:
    """Starts waiting until every rank has made this call; fails on all if the calls differ.

    It comes before rounds in which not all ranks take part, or not as many on each: a rank could
    wait for ever in one of them.
    """
    round_ = session.barrier(f"{identity.name}.agree", ranks, identity.tag)
    identity.note(round_)
    return Handle(round_, lambda: None)


@contextlib.contextmanager
def matched_by_names(
    session: Session,
    series: tuple[str, str, ProcessSet],
    prefix: str,
    described: Mapping[str, object],
    what: str,
    root_rank: int,
) -> Iterator[Identity]:
    """Within it parameters of these names are broadcast: what they are called begins with its name.

    `series` is the kind of the call, its name and its ranks. It fails on all ranks where they give
    other names, another root, or `described` otherwise what has a name.
    """
    kind, name, process_set = series
    # The names of a whole model are too long for a message; other names have another mark.
    mark = f"{zlib.crc32(repr((root_rank, list(described))).encode()):08x}"
    call = (
        f"broadcast_parameters({len(described)} {what} with names marked {mark}, root {root_rank})"
    )
    identity = identify_call(session, _place_of(kind, name, process_set), prefix + mark, call)
    ranks = None if process_set is global_process_set else members(process_set)
    agree(session, identity, ranks).synchronize()
    over = f"{identity.name}.over"
    try:
        # Only now: a scope that a rank had taken alone would keep the next calls apart as well.
        yield identity._replace(name=session.scope(f"{identity.name}.of.", described))
    except MismatchError as error:
        # Of a broadcast, which some ranks may have without those that differ.
        session.refuse_name(over, f"rank {session.rank} has failed: {error}"[:LONGEST_REASON])
        raise
    round_ = session.barrier(over, ranks, identity.tag)
    identity.note(round_)
    round_.wait()


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


def _place_of(kind: str, name: str | None, process_set: ProcessSet) -> str:
    """What the calls of a series have in common."""
    among = label(process_set)
    return f"unnamed{among}" if name is None else f"{kind}.{name}{among}"


def _of_kind(own: str, known: int) -> str:
    """The name of the calls under `own` that look alike, by when the first of them was made."""
    return f"{own}~{known}" if known else own


def _since_failure(series: Series, own: str) -> str:
    return own if series.failed is None else f"{own}!{series.failed}"


def _next(series: Series, place: str, own: str, call: str) -> Identity:
    number = series.count
    series.count += 1
    if series.failed is not None:
        call = f"{call}, after call #{series.failed} failed"
    return Identity(_since_failure(series, own), f"{place}#{number}|{call}", series, number)


# Names mean nothing outside their session.
_series: weakref.WeakKeyDictionary[Session, dict[str, Series]] = weakref.WeakKeyDictionary()
