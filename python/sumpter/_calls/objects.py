"""Objects of Python from one rank to all, or from all to all.

They travel as pickles, and unpickling runs what the sender wrote. They are accepted from members of
the job only, all of which have proved on every connection that they know its token.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from sumpter._calls import collective as kinds
from sumpter._calls.collective import Collective, Front
from sumpter._calls.rounds import perform
from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet, members


def broadcast_object(
    front: Front, obj: Any, root_rank: int, name: str | None, process_set: ProcessSet
) -> Any:
    """Returns rank `root_rank`'s object; the other ranks' arguments are ignored."""
    current = membership.current()
    membership.check_root(current, root_rank)
    is_root = current.rank == root_rank
    own = np.frombuffer(pickle.dumps(obj) if is_root else b"", np.uint8)
    word = name or "object"
    length = np.array([own.size])
    (size,) = _alone(front, kinds.BROADCAST, f"{word}.size", length, process_set, root_rank)
    content = own if is_root else np.empty(int(size), np.uint8)
    named = f"{word}.{int(size)}"
    received = _alone(front, kinds.BROADCAST, named, content, process_set, root_rank)
    return obj if is_root else pickle.loads(received.tobytes())


def allgather_object(
    front: Front, obj: Any, name: str | None, process_set: ProcessSet
) -> list[Any]:
    """Returns all ranks' objects, by rank."""
    own, word = np.frombuffer(pickle.dumps(obj), np.uint8), name or "objects"
    sizes = _alone(front, kinds.ALL_GATHER, f"{word}.sizes", np.array([own.size]), process_set)
    most = int(sizes.max())
    padded = np.zeros(most, np.uint8)
    padded[: own.size] = own
    gathered = _alone(front, kinds.ALL_GATHER, f"{word}.{most}", padded, process_set)
    rows = gathered.reshape(-1, most)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def _alone(
    front: Front,
    kind: str,
    name: str,
    array: np.ndarray,
    process_set: ProcessSet,
    root: int = 0,
) -> np.ndarray:
    """One collective on an array of the host."""
    size = len(members(process_set))
    called = Collective(
        *(front, kind, ("",), name), root=root, process_set=process_set, size=size, codecs=("",)
    )
    (result,) = perform(called, [array])
    return result
