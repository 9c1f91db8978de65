"""push_pull and its relatives on NumPy and DLPack arrays: the face of `import sumpter`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sumpter import _arrays, _native
from sumpter._core import membership
from sumpter._core.membership import HOLDER, check_root
from sumpter._core.session import Handle, Session


class ArrayHandle:
    """An operation in flight and the array it will return."""

    def __init__(self, native: Handle, finish: Callable[[], Any]) -> None:
        self._native = native
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def poll(self) -> bool:
        """Whether synchronize() would return, or raise, at once."""
        return self._native.poll()

    def synchronize(self) -> Any:
        """Waits for the operation and returns its result, the same one every time."""
        self._native.wait()
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result


def init(**settings: object) -> None:
    """Joins the job; settings given here override the environment. Repeating it does nothing."""
    membership.acquire(HOLDER, settings)


def push_pull(array: Any, average: bool = True, name: str | None = None, priority: int = 0) -> Any:
    """Returns the sum of `array` over all workers, or its average.

    The result is of the caller's kind of array. Averages of integers are rounded down. An
    operation without a name is matched with the other ranks' by the order of calls.
    """
    return push_pull_async(array, average, name, priority).synchronize()


def push_pull_async(
    array: Any, average: bool = True, name: str | None = None, priority: int = 0
) -> ArrayHandle:
    """Starts a push_pull. The array must not change before synchronize() has returned."""
    session = membership.current()
    given = _arrays.read(array)
    dtype = _arrays.check_summable(given.array)
    floating = given.array.dtype.kind not in "iu"
    total = np.empty_like(given.array)
    native = session.submit(
        _native.Round("all_reduce", given.array.shape, dtype, average=average and floating),
        **_identity(session, "push_pull", name, given.array, "sum"),
        send=given.array.ctypes.data,
        receive=total.ctypes.data,
        keep=(given.array, total),
        priority=priority,
    )

    def finish() -> Any:
        divides = average and not floating
        return given.restore(_arrays.divide(total, session.world_size) if divides else total)

    return ArrayHandle(native, finish)


def poll(handle: ArrayHandle) -> bool:
    """Whether synchronize(handle) would return, or raise, at once."""
    return handle.poll()


def synchronize(handle: ArrayHandle) -> Any:
    """Waits for an operation and returns its result."""
    return handle.synchronize()


def broadcast(array: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the array that rank `root_rank` passed; all ranks pass one of the same shape."""
    session = membership.current()
    check_root(session, root_rank)
    given = _arrays.read(array)
    result = given.array.copy()
    shape, dtype = _arrays.wire_form(result)
    session.submit(
        _native.Round("broadcast", shape, dtype, root=root_rank),
        **_identity(session, "broadcast", name, given.array, f"root {root_rank}"),
        send=result.ctypes.data if session.rank == root_rank else 0,
        receive=result.ctypes.data,
        keep=result,
    ).wait()
    return given.restore(result)


def _identity(
    session: Session, kind: str, name: str | None, array: np.ndarray, detail: str
) -> dict[str, Any]:
    """The name and tag of an operation, and whether the name may be in flight only once."""
    if name is not None:
        return {"name": f"{kind}.{name}", "exclusive": True}
    shape = "x".join(map(str, array.shape)) or "scalar"
    sequence = session.count("unnamed")
    return {
        "name": session.unnamed(f"{kind}.noname.{array.dtype}.{shape}.{detail}"),
        "tag": f"unnamed#{sequence}|{kind}({array.dtype} {list(array.shape)}, {detail})",
    }
