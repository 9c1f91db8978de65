"""push_pull and its relatives on NumPy and DLPack arrays: the face of `import sumpter`."""

from typing import Any

import numpy as np

from sumpter import _arrays
from sumpter._core import membership
from sumpter._core.handles import Handle, RoundHandle
from sumpter._core.membership import check_root
from sumpter._core.session import Session
from sumpter._core.tensor import UNNAMED_SLOTS, Description, Tensor
from sumpter._errors import DuplicateNameError


def init(**settings: object) -> None:
    """Joins the job; settings given here override the environment.

    Repeating it does nothing, unless the job has failed or a rank has left it: then all ranks join
    anew.
    """
    membership.join(settings)


def push_pull(array: Any, average: bool = True, name: str | None = None, priority: int = 0) -> Any:
    """Returns the sum of `array` over all workers, or its average.

    The result is of the caller's kind of array. Averages of integers are rounded down. An
    operation without a name is matched with the other ranks' by the order of calls.
    """
    return push_pull_async(array, average, name, priority).synchronize()


def push_pull_async(
    array: Any, average: bool = True, name: str | None = None, priority: int = 0
) -> Handle[Any]:
    """Starts a push_pull. The array must not change before synchronize() has returned."""
    session = membership.current()
    given, restore = _arrays.read(array)
    key = ("push_pull", name, given.dtype, given.shape, average)
    operation = session.operations.get(key)
    if operation is None:
        dtype = _arrays.check_summable(given)
        described = Description(
            "all_reduce", given.shape, dtype, average=average and given.dtype.kind not in "iu"
        )
        operation = _Operation(session, "push_pull", name, given, "sum", described)
        session.operations[key] = operation
    total = np.empty_like(given)
    round_ = operation.start(given.ctypes.data, total.ctypes.data, (given, total), priority)

    def finish() -> Any:
        divides = average and given.dtype.kind in "iu"
        return restore(_arrays.divide(total, session.world_size) if divides else total)

    return Handle(round_, finish, lambda: operation.free(round_))


def poll(handle: Handle[Any]) -> bool:
    """Whether synchronize(handle) would return, or raise, at once."""
    return handle.poll()


def synchronize(handle: Handle[Any]) -> Any:
    """Waits for an operation and returns its result."""
    return handle.synchronize()


def broadcast(array: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the array that rank `root_rank` passed; all ranks pass one of the same shape."""
    session = membership.current()
    check_root(session, root_rank)
    given, restore = _arrays.read(array)
    key = ("broadcast", name, given.dtype, given.shape, root_rank)
    operation = session.operations.get(key)
    if operation is None:
        described = Description("broadcast", *_arrays.wire_form(given), root=root_rank)
        operation = _Operation(session, "broadcast", name, given, f"root {root_rank}", described)
        session.operations[key] = operation
    result = given.copy()
    address = result.ctypes.data
    round_ = operation.start(address if session.rank == root_rank else 0, address, result)
    return Handle(round_, lambda: restore(result), lambda: operation.free(round_)).synchronize()


class _Operation:
    """The calls of one description: under one name, or matched by the order of calls."""

    def __init__(
        self,
        session: Session,
        kind: str,
        name: str | None,
        array: np.ndarray,
        detail: str,
        described: Description,
    ) -> None:
        self._session = session
        self._tensor: Tensor | None = None
        if name is not None:
            self._tensor = session.declare(f"{kind}.{name}", *described)
        shape = "x".join(map(str, array.shape)) or "scalar"
        unnamed = f"{kind}.noname.{array.dtype}.{shape}.{detail}"
        self._unnamed = session.cycle(unnamed, UNNAMED_SLOTS, described)
        self._call = f"{kind}({array.dtype} {list(array.shape)}, {detail})"

    def start(self, send: int, receive: int, keep: object, priority: int = 0) -> RoundHandle:
        """Starts a round; a name is taken until its owner has waited for it, or called free()."""
        session, tensor = self._session, self._tensor
        if tensor is None:
            tag = f"unnamed#{session.count('unnamed')}|{self._call}"
            return next(self._unnamed.turns).submit(
                send, receive, keep=keep, priority=priority, tag=tag
            )
        if tensor.name in session.in_flight:
            raise DuplicateNameError(
                f"an operation named {tensor.name!r} is still in flight on rank {session.rank}: "
                "synchronize it first, or give the two different names"
            )
        round_ = tensor.submit(send, receive, keep=keep, priority=priority)
        session.in_flight[tensor.name] = round_
        return round_

    def free(self, round_: RoundHandle) -> None:
        """Lets the name be used again: the owner of this round knows that it is over."""
        session, tensor = self._session, self._tensor
        if tensor is not None and session.in_flight.get(tensor.name) is round_:
            del session.in_flight[tensor.name]
