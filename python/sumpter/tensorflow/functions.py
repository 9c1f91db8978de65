"""The same state on all ranks: variables, and objects of Python."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sumpter._calls import collective as kinds
from sumpter._calls.collective import Collective
from sumpter._calls.rounds import perform
from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter.tensorflow.calls import TENSORFLOW
from sumpter.tensorflow.ops import grouped_broadcast


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Gives the variables the values of rank `root_rank`'s, in one call.

    They are assigned in place whatever `inplace` says.
    """
    variables = list(variables)
    values = grouped_broadcast(variables, root_rank, "variables", process_set)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives the variables the values of rank `root_rank`'s, and returns them."""
    variables = list(variables)
    values = grouped_broadcast(variables, root_rank, name, process_set)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return variables


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s object; the other ranks' arguments are ignored.

    It travels as a pickle, which is accepted from members of the authenticated job only.
    """
    current = membership.current()
    membership.check_root(current, root_rank)
    is_root = current.rank == root_rank
    own = np.frombuffer(pickle.dumps(obj) if is_root else b"", np.uint8)
    word = name or "object"
    length = np.array([own.size])
    size = int(_alone(kinds.BROADCAST, f"{word}.size", length, process_set, root_rank)[0])
    content = own if is_root else np.empty(size, np.uint8)
    received = _alone(kinds.BROADCAST, f"{word}.{size}", content, process_set, root_rank)
    return obj if is_root else pickle.loads(received.tobytes())


def broadcast_object_fn(
    root_rank: int = 0,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """broadcast_object() with everything but the object."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: object = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns all ranks' objects, by rank. They travel as broadcast_object()'s do."""
    own, word = np.frombuffer(pickle.dumps(obj), np.uint8), name or "objects"
    sizes = _alone(kinds.ALL_GATHER, f"{word}.sizes", np.array([own.size]), process_set)
    most = int(sizes.max())
    padded = np.zeros(most, np.uint8)
    padded[: own.size] = own
    rows = _alone(kinds.ALL_GATHER, f"{word}.{most}", padded, process_set).reshape(-1, most)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def _alone(
    kind: str, name: str, array: np.ndarray, process_set: ProcessSet, root: int = 0
) -> np.ndarray:
    """One collective on an array of the host."""
    size = len(members(process_set))
    called = Collective(
        TENSORFLOW, kind, ("",), name, root=root, process_set=process_set, size=size
    )
    (result,) = perform(called._replace(codecs=("",)), [array])
    return result
