"""Rows that move between ranks which have different numbers of them: allgather and alltoall.

Ranks first tell each other the numbers; how is in _core/pieces.py. As in rounds.py the core sees
copies only, and all of a call's rounds begin before the first is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sumpter._calls import collective as kinds
from sumpter._calls.refusals import Checking
from sumpter._core import membership
from sumpter._core.handles import RoundHandle
from sumpter._core.names import Identity, identify
from sumpter._core.pieces import check_splits, describe_row, exchange_counts, padded, rows_form
from sumpter._core.process_sets import ProcessSet, members
from sumpter._core.session import Session
from sumpter._errors import SumpterError


def gather(
    arrays: Sequence[np.ndarray], name: str | None, process_set: ProcessSet, priority: int = 0
) -> list[list[np.ndarray]]:
    """Returns all ranks' rows of each array, by rank."""
    session, ranks = membership.current(), members(process_set)
    calls = _calls(session, kinds.ALL_GATHER, arrays, name, process_set)
    tables = _counts(session, calls, [[len(array)] for array in arrays], process_set)
    gathered: list[list[np.ndarray]] = []
    rounds: list[RoundHandle] = []
    for (identity, array), table in zip(calls, tables, strict=True):
        pieces = []
        for root, (length,) in zip(ranks, table, strict=True):
            own = array if root == session.rank else None
            piece = _Piece.of(own, (length, *array.shape[1:]), array.dtype)
            rounds += piece.move(session, identity, root, ranks, str(root), priority)
            pieces.append(piece.rows)
        gathered.append(pieces)
    _wait(rounds)
    return gathered


def scatter(
    array: np.ndarray,
    splits: Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
    priority: int = 0,
) -> list[np.ndarray]:
    """Sends `splits[i]` rows to the set's member i; returns the rows received, by rank.

    Without `splits` every rank gets equally many rows.
    """
    session, ranks = membership.current(), members(process_set)
    with Checking(kinds.EXCHANGE_ROWS, name, process_set):
        counts = check_splits(len(array), splits, len(ranks))
    calls = _calls(session, kinds.EXCHANGE_ROWS, [array], name, process_set)
    (table,) = _counts(session, calls, [counts], process_set)
    own, identity = ranks.index(session.rank), calls[0][0]
    sent = np.split(array, np.cumsum(counts)[:-1])
    received: list[np.ndarray] = []
    rounds: list[RoundHandle] = []
    for other, rank in enumerate(ranks):
        if other == own:
            received.append(sent[own].copy())
            continue
        shape, pair = (table[other][own], *array.shape[1:]), sorted((rank, session.rank))
        outgoing = _Piece.of(sent[other], sent[other].shape, array.dtype)
        incoming = _Piece.of(None, shape, array.dtype)
        there, here = f"{session.rank}.to.{rank}", f"{rank}.to.{session.rank}"
        rounds += outgoing.move(session, identity, session.rank, pair, there, priority)
        rounds += incoming.move(session, identity, rank, pair, here, priority)
        received.append(incoming.rows)
    _wait(rounds)
    return received


class _Piece(NamedTuple):
    """Rows on their way from one rank to others, in memory that may be longer."""

    rows: np.ndarray
    memory: np.ndarray

    @classmethod
    def of(cls, own: np.ndarray | None, shape: Sequence[int], dtype: np.dtype) -> _Piece:
        """A copy of this rank's own rows, or memory for those of another."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = np.empty(padded(size), np.uint8)
        memory[size:] = 0
        rows = memory[:size].view(dtype).reshape(shape)
        if own is not None:
            rows[...] = own
        return cls(rows, memory)

    def move(
        self,
        session: Session,
        identity: Identity,
        root: int,
        ranks: list[int],
        way: str,
        priority: int,
    ) -> list[RoundHandle]:
        """Starts the transfer from `root` to the other ranks; nothing for no bytes."""
        if not self.rows.nbytes:
            return []
        capacity, address = self.memory.nbytes, self.memory.ctypes.data
        part = identity.part(f"{way}.{capacity}")
        declared = session.declare(
            *(part.name, "broadcast", (capacity,), "uint8"), root=root, ranks=tuple(ranks)
        )
        send = address if root == session.rank else 0
        round_ = declared.submit(
            *(send, address), keep=self.memory, priority=priority, tag=part.tag
        )
        part.note(round_)
        return [round_]


def _calls(
    session: Session,
    kind: str,
    arrays: Sequence[np.ndarray],
    name: str | None,
    process_set: ProcessSet,
) -> list[tuple[Identity, np.ndarray]]:
    """The arrays of a call with their identities."""
    calls = []
    for index, array in enumerate(arrays):
        own = name if name is None or len(arrays) == 1 else f"{name}.{index}"
        form = rows_form(name, array.dtype.name, array.shape[1:])
        calls.append((identify(session, kind, own, *form, process_set), array))
    return calls


def _counts(
    session: Session,
    calls: Sequence[tuple[Identity, np.ndarray]],
    counts: Sequence[Sequence[int]],
    process_set: ProcessSet,
) -> list[list[list[int]]]:
    """How many rows each rank has of each array, or sends where."""
    begun = [
        exchange_counts(
            session, identity, own, describe_row(array.dtype.name, array.shape[1:]), process_set
        )
        for (identity, array), own in zip(calls, counts, strict=True)
    ]
    _wait([handle.round for handle in begun])
    return [handle.synchronize() for handle in begun]


def _wait(rounds: Sequence[RoundHandle]) -> None:
    """Waits for all of them, then raises what went wrong with the first that failed."""
    errors = []
    for round_ in rounds:
        try:
            round_.wait()
        except SumpterError as error:
            errors.append(error)
    if errors:
        raise errors[0]
