"""Process sets: collectives among some of the ranks, in Horovod's words.

A set needs no communication of its own: its members find each other by their ranks. What every
rank must do alike is to add the same sets, since a set's number counts additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sumpter._core import membership
from sumpter._core.session import Session
from sumpter._errors import UnsupportedError


class ProcessSet:
    """Some ranks of the job, in ascending order; usable once it was added."""

    def __init__(self, ranks_or_comm: Sequence[int] | object) -> None:
        if isinstance(ranks_or_comm, str) or not isinstance(ranks_or_comm, Iterable):
            raise UnsupportedError("a process set is made of ranks; there are no communicators")
        self.ranks: list[int] | None = sorted(int(rank) for rank in ranks_or_comm)
        self.process_set_id: int | None = None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self.ranks == other.ranks

    def __hash__(self) -> int:
        return hash(tuple(self.ranks or ()))

    def included(self) -> bool:
        """Whether this rank is a member."""
        session = self._session()
        return self.ranks is None or session.rank in self.ranks

    def rank(self) -> int:
        """This rank's place in the set; ValueError if it is no member."""
        session = self._session()
        if self.ranks is None:
            return session.rank
        if session.rank not in self.ranks:
            raise ValueError(f"rank {session.rank} is not in {self}")
        return self.ranks.index(session.rank)

    def size(self) -> int:
        """How many ranks it has."""
        session = self._session()
        return session.world_size if self.ranks is None else len(self.ranks)

    def _session(self) -> Session:
        session = membership.current()
        if _added.get(self.process_set_id, session) is not self:
            raise ValueError(f"{self} was not added: call add_process_set() on every rank first")
        return session


class _Global(ProcessSet):
    """All ranks, whatever the job."""

    def __init__(self) -> None:
        self.ranks = None
        self.process_set_id = 0

    def __reduce__(self) -> str:
        # There is one, and a copy would be no set that was added.
        return "global_process_set"


class _Added:
    """The sets of the open session; a new session starts with all ranks only."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._sets: dict[int, ProcessSet] = {}
        self._next = 1

    def get(self, number: int | None, session: Session) -> ProcessSet | None:
        return global_process_set if number == 0 else self._of(session).get(number or 0)

    def add(self, added: ProcessSet, session: Session) -> None:
        sets = self._of(session)
        added.process_set_id = self._next
        sets[self._next] = added
        self._next += 1

    def remove(self, removed: ProcessSet, session: Session) -> bool:
        sets = self._of(session)
        if sets.get(removed.process_set_id or 0) is not removed:
            return False
        del sets[removed.process_set_id or 0]
        removed.process_set_id = None
        return True

    def all(self, session: Session) -> dict[int, ProcessSet]:
        return {0: global_process_set, **self._of(session)}

    def _of(self, session: Session) -> dict[int, ProcessSet]:
        if self._session is not session:
            self._session, self._sets, self._next = session, {}, 1
        return self._sets


global_process_set = _Global()
_added = _Added()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a set usable; every rank must add the same sets in the same order."""
    session = membership.current()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set.ranks
    if ranks is None:
        raise ValueError("the set of all ranks is there from the start")
    wrong = [rank for rank in ranks if not 0 <= rank < session.world_size]
    if not ranks or wrong or len(set(ranks)) != len(ranks):
        raise ValueError(
            f"a process set needs distinct ranks from 0 to {session.world_size - 1}, not {ranks}"
        )
    if process_set in _added.all(session).values() or len(ranks) == session.world_size:
        raise ValueError(f"there is a process set with the ranks {ranks} already")
    _added.add(process_set, session)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set away; False if it was not there, or if it is the set of all ranks."""
    return process_set.ranks is not None and _added.remove(process_set, membership.current())


def process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of every set, by its number."""
    session = membership.current()
    everyone = list(range(session.world_size))
    return {
        number: everyone if known.ranks is None else list(known.ranks)
        for number, known in _added.all(session).items()
    }


def find(ranks: Sequence[int] | None) -> ProcessSet:
    """The set that was added with these ranks, or one that has to be added; None are all ranks."""
    if ranks is None:
        return global_process_set
    session = membership.peek()
    known = {} if session is None else _added.all(session)
    wanted = ProcessSet(ranks)
    return next((one for one in known.values() if one == wanted), wanted)


def adopt(process_sets: object) -> None:
    """Adds what was given to init(process_sets=...)."""
    if process_sets is None or process_sets == "dynamic":
        return
    if isinstance(process_sets, str) or not isinstance(process_sets, Iterable):
        raise ValueError(
            f"process_sets is {process_sets!r}: give a list of process sets, or 'dynamic'"
        )
    for process_set in process_sets:
        add_process_set(process_set)


def members(process_set: ProcessSet) -> list[int]:
    """The ranks of a set that this rank takes part in."""
    if not process_set.included():
        raise ValueError(f"rank {membership.current().rank} is not in {process_set}")
    everyone = range(membership.current().world_size)
    return list(everyone) if process_set.ranks is None else process_set.ranks


def label(process_set: ProcessSet) -> str:
    """What is appended to the names of a set's operations; nothing for all ranks."""
    return "" if process_set.ranks is None else "@" + ",".join(map(str, process_set.ranks))
