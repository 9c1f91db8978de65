"""push_pull and its relatives on NumPy and DLPack arrays: the face of `import sumpter`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sumpter import _arrays
from sumpter._calls import collective as kinds
from sumpter._calls import objects
from sumpter._calls.refusals import Checking, refuse
from sumpter._core import membership, names
from sumpter._core.compression.choice import Choice, Limits, choose
from sumpter._core.compression.codecs import Codec, Compression, NoneCompressor
from sumpter._core.handles import Handle, RoundHandle
from sumpter._core.membership import check_root
from sumpter._core.process_sets import global_process_set
from sumpter._core.session import Session
from sumpter._core.tensor import Description
from sumpter._errors import UnsupportedError
from sumpter._results import ResultMemory

_results = ResultMemory()


def init(**settings: object) -> None:
    """Joins the job; settings given here override the environment.

    Repeating it does nothing, unless the job has failed or a rank has left it: then all ranks join
    anew.
    """
    membership.join(settings)


def push_pull(
    array: Any,
    average: bool = True,
    name: str | None = None,
    priority: int = 0,
    *,
    out: np.ndarray | None = None,
    compression: Codec | str | Mapping[str, Any] = Compression.none,
) -> Any:
    """Returns the sum of `array` over all workers, or its average.

    The result is of the caller's kind of array. Averages of integers are rounded down. An
    operation without a name is matched with the other ranks' by the order of calls.

    With `out`, a contiguous NumPy array of the shape and element type of `array`, the result is
    written there, and returned; it may be `array` itself. That saves a new array, whose memory the
    system zeroes first, unless an earlier result of this size is gone. Raises UnsupportedError for
    any other array.

    By a codec of `compression` floating-point arrays travel in fewer bytes: `Compression.int8`,
    `"topk:k=0.01"`, or a dictionary as BytePS has it. What a codec leaves out is kept for the next
    operation of the same name; without a name it is lost. ConfigError for an unknown codec or
    argument, MismatchError for an array that has none.
    """
    handle = push_pull_async(array, average, name, priority, out=out, compression=compression)
    return handle.synchronize()


def push_pull_async(
    array: Any,
    average: bool = True,
    name: str | None = None,
    priority: int = 0,
    *,
    out: np.ndarray | None = None,
    compression: Codec | str | Mapping[str, Any] = Compression.none,
) -> Handle[Any]:
    """Starts a push_pull. The array must not change before synchronize() has returned.

    Nor must `out` be read or written until then.
    """
    session = membership.current()
    # Not by a context manager, which takes longer than all of it.
    try:
        given, restore = _arrays.read(array)
        if out is not None:
            _arrays.check_out(out, given)
            restore = _arrays.unchanged
        choice = choose(compression)
        key = (kinds.ALL_REDUCE, name, given.dtype, given.shape, average, choice)
        operation = session.operations.get(key)
        if operation is None:
            operation = _reduction(session, name, given, average, choice)
            session.operations[key] = operation
    except Exception as error:
        refuse(kinds.ALL_REDUCE, name, global_process_set, error)
        raise
    total = _results.empty_like(given) if out is None else out
    started = operation.start(given.ctypes.data, total.ctypes.data, (given, total), priority)

    def finish() -> Any:
        divides = average and given.dtype.kind in "iu"
        return restore(_arrays.divide(total, session.world_size) if divides else total)

    return Handle(started.round, finish, started.seen)


def _reduction(
    session: Session, name: str | None, given: np.ndarray, average: bool, choice: Choice
) -> "_Operation":
    """The push_pulls of one description; raises for arrays that cannot be summed so."""
    if choice.compressor is not NoneCompressor:
        raise UnsupportedError(
            f"push_pull of arrays takes codecs of Compression, not {choice.compressor!r}: cast the "
            "array"
        )
    dtype = _arrays.check_summable(given)
    limits, named = Limits.of(session.worker), name is not None
    codec = limits.codec_of(choice, given.shape, dtype, sums=True, named=named)
    floats = given.dtype.kind not in "iu"
    described = Description(
        "all_reduce", given.shape, dtype, average=average and floats, compression=codec
    )
    detail = "average" if average else "sum"
    detail = f"{detail} by {codec}" if codec else detail
    return _Operation(session, kinds.ALL_REDUCE, name, given, detail, described)


def poll(handle: Handle[Any]) -> bool:
    """Whether synchronize(handle) would return, or raise, at once."""
    return handle.poll()


def synchronize(handle: Handle[Any]) -> Any:
    """Waits for an operation and returns its result."""
    return handle.synchronize()


def broadcast(array: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the array that rank `root_rank` passed; all ranks pass one of the same shape.

    UnsupportedError for an array of objects of Python, which broadcast_object() takes.
    """
    session = membership.current()
    with Checking(kinds.BROADCAST, name):
        check_root(session, root_rank)
        given, restore = _arrays.read(array)
        _arrays.check_movable(given)
    key = (kinds.BROADCAST, name, given.dtype, given.shape, root_rank)
    operation = session.operations.get(key)
    if operation is None:
        described = Description("broadcast", *_arrays.wire_form(given), root=root_rank)
        operation = _Operation(
            session, kinds.BROADCAST, name, given, f"root {root_rank}", described
        )
        session.operations[key] = operation
    result = given.copy()
    address = result.ctypes.data
    started = operation.start(address if session.rank == root_rank else 0, address, result)
    return Handle(started.round, lambda: restore(result), started.seen).synchronize()


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns rank `root_rank`'s object of Python; the other ranks' arguments are ignored.

    It travels as a pickle, which is accepted from members of the authenticated job only.
    """
    return objects.broadcast_object(obj, root_rank, name)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns all ranks' objects, by rank. They travel as broadcast_object()'s do."""
    return objects.allgather_object(obj, name)


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
        self._described = described
        self._names = names.Operation(session, kind, name, array.dtype.name, array.shape, detail)

    def start(self, send: int, receive: int, keep: object, priority: int = 0) -> "_Started":
        """Starts a round; a name is taken until `seen` of what this returns was called."""
        identity = self._names.next()
        tensors = self._names.tensors
        tensor = tensors.get(identity.name)
        if is_first := tensor is None:
            tensor = tensors[identity.name] = self._session.declare(identity.name, *self._described)
        round_ = tensor.submit(send, receive, keep=keep, priority=priority, tag=identity.tag)
        identity.note(round_)
        if is_first:
            names.share_refusal(self._session, identity, tensor, round_)
        return _Started(round_, identity.own())


class _Started(NamedTuple):
    """A round, and what says that its owner knows that it is over."""

    round: RoundHandle
    seen: Callable[[], None] | None
