"""Objects of Python, and few numbers, on all ranks: for fronts, and for what they share.

Objects travel as pickles, and unpickling runs what the sender wrote. They are accepted from
members of the job only, all of which have proved on every connection that they know its token.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from sumpter._arrays import check_movable
from sumpter._calls import collective as kinds
from sumpter._calls.collective import Collective, Front
from sumpter._calls.refusals import Checking, numbered
from sumpter._calls.rounds import perform
from sumpter._core import membership
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.reduction import ReduceOp, Sum
from sumpter._errors import MismatchError

# Objects are padded to a power of two so that a few names serve objects of every size.
SMALLEST_OBJECT_BYTES = 256

# The name of objects without one.
_OBJECT = "object"

# Nothing of these calls is compiled.
HOST = Front("host", "make the call again")


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns rank `root_rank`'s object; the other ranks' arguments are ignored.

    It travels as a pickle, which is accepted from members of the authenticated job only.
    """
    pickled = broadcast_pickle(obj, root_rank, name, process_set)
    return obj if membership.rank() == root_rank else pickle.loads(pickled)


def broadcast_pickle(
    obj: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> bytes:
    """Returns rank `root_rank`'s object as a pickle; MismatchError on all ranks if roots differ."""
    current, word = membership.current(), name or _OBJECT
    with checking_object(name, process_set):
        membership.check_root(current, root_rank)
        ranks, is_root = members(process_set), current.rank == root_rank
        own = np.frombuffer(pickle.dumps(obj) if is_root else b"", np.uint8)
    # A sum with the zeros of the others, since all of them must have arrived for it: the size, and
    # which root each rank means, counted from 1 since one that is out of data sends a zero.
    told = np.zeros(1 + len(ranks), np.int64)
    told[0], told[1 + process_set.rank()] = own.size, 1 + root_rank
    size, *roots = on_host(kinds.ALL_REDUCE, f"{word}.size", told, process_set).tolist()
    if any(root not in (0, 1 + root_rank) for root in roots):
        words = [f"{root - 1} on rank {rank}" for rank, root in zip(ranks, roots, strict=True)]
        raise MismatchError(
            f"broadcast_object {word!r}: root_rank is {', '.join(words)}; it must be equal on "
            "every rank"
        )
    content = np.zeros(_capacity(size), np.uint8)
    content[: own.size] = own
    called = f"{word}.{content.size}"
    received = on_host(kinds.BROADCAST, called, content, process_set, root=root_rank)
    return received[:size].tobytes()


def checking_object(
    name: str | None = None, process_set: ProcessSet = global_process_set
) -> Checking:
    """The checks of a broadcast_object, before it begins."""
    return Checking(kinds.ALL_REDUCE, f"{name or _OBJECT}.size", process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns all ranks' objects, by rank. They travel as broadcast_object()'s do."""
    word = name or "objects"
    with Checking(kinds.ALL_GATHER, f"{word}.sizes", process_set):
        own = np.frombuffer(pickle.dumps(obj), np.uint8)
    length = np.array([own.size], np.int64)
    sizes = on_host(kinds.ALL_GATHER, f"{word}.sizes", length, process_set)
    most = _capacity(int(sizes.max()))
    padded = np.zeros(most, np.uint8)
    padded[: own.size] = own
    rows = on_host(kinds.ALL_GATHER, f"{word}.{most}", padded, process_set).reshape(-1, most)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def reduce_numbers(numbers: Sequence[int], op: ReduceOp, name: str) -> list[int]:
    """The reduction of a few whole numbers over all ranks."""
    return on_host(kinds.ALL_REDUCE, name, np.array(numbers, np.int32), op=op).tolist()


def broadcast_arrays(
    arrays: Sequence[np.ndarray],
    root_rank: int,
    name: str,
    process_set: ProcessSet = global_process_set,
) -> list[np.ndarray]:
    """Returns rank `root_rank`'s arrays, in one call."""
    paths, size = tuple(f".{index}" for index in range(len(arrays))), len(members(process_set))
    with Checking(kinds.BROADCAST, name, process_set, dict.fromkeys(paths)):
        membership.check_root(membership.current(), root_rank)
        for array in arrays:
            check_movable(array)
    if not arrays:
        return []
    called = Collective(HOST, kinds.BROADCAST, paths, name, Sum, root_rank, process_set, size)
    return perform(called._replace(codecs=("",) * len(arrays)), arrays)


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
    name = "variables"
    with Checking(kinds.BROADCAST, name, process_set, lambda: numbered(len(variables))):
        values = [np.array(variable.numpy()) for variable in variables]
    for variable, value in zip(
        variables, broadcast_arrays(values, root_rank, name, process_set), strict=True
    ):
        variable.assign(value)


def on_host(
    kind: str,
    name: str | None,
    array: np.ndarray,
    process_set: ProcessSet = global_process_set,
    *,
    op: ReduceOp = Sum,
    root: int = 0,
    codec: str = "",
) -> np.ndarray:
    """One collective on an array of the host."""
    size = len(members(process_set))
    called = Collective(HOST, kind, ("",), name, op, root, process_set, size, (codec,))
    (result,) = perform(called, [array])
    return result


def _capacity(size: int) -> int:
    return max(SMALLEST_OBJECT_BYTES, 1 << (size - 1).bit_length())
