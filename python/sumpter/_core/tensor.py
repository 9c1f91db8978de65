"""Declared tensors: what is the same in every round of a tensor is said once.

`Session.declare()` makes a `Tensor`. Callers keep it and submit rounds of it: memory, priority and
the tag for error messages are all that a submission says.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sumpter import _native
from sumpter._core.compression.codecs import has_momentum
from sumpter._core.handles import Done, RoundHandle, Successor

if TYPE_CHECKING:
    from sumpter._core.session import Session
    from sumpter._native import Decision, Supply

# The element types that the core has kernels for, and their sizes.
ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}

# How many operations of one description and without a name may be in flight before a new one
# queues behind the oldest: enough to keep a pipeline of collectives busy, few enough for a small
# tensor table.
UNNAMED_SLOTS = 8

_DONE = Done()

# Other threads run meanwhile, as they do not with ctypes.memmove().
_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Description(NamedTuple):
    """What all ranks agree about in the rounds of a tensor, but for its name.

    `collective` is "all_reduce", "broadcast", "reduce", "barrier" or "reduce_scatter", of which a
    tensor is the share that the root receives; `op` is "sum", "min", "max" or "product". `root`
    and `ranks` are ranks of the job; `ranks` are the participants, None meaning all. `average`
    divides a floating-point sum by the number of contributing ranks. The sums of the collective
    "update" change a variable by `rule`, one of `sumpter._native.update_rules()`, and the results
    are its values. With a `staleness` above 0, or None for no bound, each contribution changes it
    when it arrives: a rank gets the value once no other is more than so many rounds behind. Of a
    `sharded` all_reduce, a rank contributes and receives only a shard of its device group's sum.
    By `compression`, a codec with its arguments, an all_reduce of floats travels that adds.
    """

    collective: str
    shape: tuple[int, ...]
    dtype: str
    op: str = "sum"
    root: int = 0
    average: bool = False
    ranks: tuple[int, ...] | None = None
    rule: str | None = None
    staleness: int | None = 0
    sharded: bool = False
    compression: str = ""


class CodecMemory(NamedTuple):
    """What the codec of a tensor keeps on this rank, as the bytes of float32; None for zeros."""

    residual: bytearray | memoryview | None = None
    momentum: bytearray | memoryview | None = None
    # Where the codec's random numbers go on: a tensor's number and a round.
    draws: tuple[int, int] | None = None


def ready_times(begun: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    """When each tensor is ready, in seconds after the first of its training step: the medians.

    `begun` are rounds and when they began. A step begins with the first tensor that its step
    before has as well. The first and the last step may have been cut, and do not count if there
    are others.
    """
    steps: list[dict[Hashable, float]] = [{}]
    for tensor, at in sorted(begun, key=lambda one: one[1]):
        if tensor in steps[-1]:
            steps.append({})
        steps[-1][tensor] = at
    whole = steps[1:-1] or steps
    found: dict[Hashable, list[float]] = {}
    for step in whole:
        for tensor, at in step.items():
            found.setdefault(tensor, []).append(at - min(step.values()))
    return {tensor: statistics.median(times) for tensor, times in found.items()}


class TensorUse(NamedTuple):
    """How a reduced tensor has been used for some time."""

    shape: Sequence[int]
    dtype: str
    priority: int  # of its last round; higher goes first
    rounds: int  # begun in that time
    ready_s: float | None = None  # after the first tensor of a step, if that was recorded


class Tensor:
    """A tensor of the session's table under one name, with one description."""

    __slots__ = ("_is_empty", "_restored", "_submit", "description", "is_alone", "name", "native",
                 "session", "shard")  # fmt: skip

    def __init__(self, session: Session, name: str, description: Description) -> None:
        self.session = session
        self.name = name
        self.description = description
        collective, shape, dtype, op, *others = description
        options = dict(zip(Description._fields[4:], others, strict=True))
        # Whether no other rank takes part: the result is the contribution then, and needs no round,
        # unless the codec has the optimizer's momentum.
        is_alone = session.world_size == 1 or description.ranks == (session.rank,)
        is_alone = is_alone and description.rule is None
        self.is_alone = is_alone and not has_momentum(description.compression)
        if self.is_alone:
            # A round for the timeline must not change it either.
            options["compression"] = ""
        native = session.worker.declare(name, collective, shape, dtype, op, **options)
        self._is_empty = native.is_empty
        # First byte and size of what this rank contributes and receives; None for all of it.
        self.shard = native.shard if description.sharded else None
        self.native = native
        self._submit = native.submit
        # What the next round is to go on from, of an earlier job.
        self._restored: CodecMemory | None = None

    @property
    def rounds(self) -> int:
        """How many have begun."""
        return self.native.rounds

    @property
    def priority(self) -> int:
        """That of the last round."""
        return self.native.priority

    @property
    def item_bytes(self) -> int:
        """The size of an element."""
        return ITEM_BYTES[self.description.dtype]

    @property
    def bytes(self) -> int:
        """The size of the memory: of this rank's shard, if the tensor is sharded."""
        if self.shard is not None:
            return self.shard[1]
        return math.prod(self.description.shape) * self.item_bytes

    @property
    def shards(self) -> list[tuple[int, int, int]] | None:
        """What each participant of this rank's device group holds: rank, first byte, size.

        Ascending by rank; together all bytes of the tensor. None if it is not sharded.
        """
        return None if self.shard is None else self.native.shards

    def submit(
        self,
        send: int,
        receive: int,
        keep: object,
        priority: int = 0,
        tag: str = "",
        update: Sequence[float] | None = None,
        order: Sequence[tuple[int, int, int, int]] | None = None,
        rescale: float = 1.0,
    ) -> RoundHandle:
        """Starts one round on the contiguous memory at two addresses, which `keep` holds.

        The addresses may be equal; 0 is for what is not needed. A higher `priority` goes first.
        `tag` is text for error messages. A round of a variable needs the coefficients of its
        `update`, the same on all ranks, and two addresses. If it changes asynchronously, the round
        may follow an `order` that `order()` of its handle gave in another run. What earlier rounds
        have left out of a compressed tensor is multiplied by `rescale`.
        """
        if self._is_empty:
            return _DONE
        if self.is_alone and not self.session.has_timeline:
            if not self.rounds:
                self.session.check_meaning(self)
            if send and receive and send != receive:
                _memmove(receive, send, self.bytes)
            self.native.note(priority)
            return _DONE
        # As _note() does: a call would take as long as all of this.
        if self.session.begun is not None:
            self.session.begun.append((self, time.monotonic()))
        return self._submit(send, receive, priority, tag, keep, update, order, rescale)

    def submit_deferred(
        self, send: int, receive: int, *, keep: object, priority: int = 0, tag: str = ""
    ) -> tuple[RoundHandle, Decision | None]:
        """Starts one round of a variable as submit() does, before its update is known.

        The gradients are summed meanwhile. The round waits until all ranks have decided the same
        by what is returned beside the handle; nothing if there are no elements.
        """
        if self._is_empty:
            return _DONE, None
        self._note()
        return self.native.submit_deferred(send, receive, priority, tag, keep)

    def set_state(self, parts: Sequence[memoryview]) -> RoundHandle:
        """Gives a variable its value and the slots of its rule, or its value and zeros.

        Each part is the bytes of all elements as float64 for float64, else as float32. All ranks
        must pass the same, while no round is under way.
        """
        return _DONE if self._is_empty else self.native.set_state(parts)

    @property
    def keeps(self) -> bool:
        """Whether its codec keeps anything from round to round."""
        codec = self.description.compression
        return bool(codec) and any(_native.codec_keeps(codec))

    def codec_memory(self) -> CodecMemory:
        """What the codec keeps on this rank; MismatchError while a round is under way."""
        if self._restored is not None:
            return self._restored
        return CodecMemory() if self._is_empty else CodecMemory(*self.native.codec_memory())

    def restore(self, memory: CodecMemory) -> None:
        """Has the next round go on from what codec_memory() returned, in this job or another.

        That round fails if one is under way when it is begun, or if the memory is of another size.
        """
        self._restored = memory
        self._submit = self._submit_restored

    def _submit_restored(self, *arguments: Any) -> RoundHandle:
        return self._after_restoring(self._set_memory(), self.native.submit(*arguments))

    def _set_memory(self) -> RoundHandle | None:
        """Puts what is to be restored before the next round."""
        memory, self._restored = self._restored, None
        self._submit = self.native.submit
        return None if memory is None else self.native.set_codec_memory(*memory[:2])

    @staticmethod
    def _after_restoring(restored: RoundHandle | None, round_: RoundHandle) -> RoundHandle:
        return round_ if restored is None else Successor(restored, round_)

    def refuse(self, reason: str) -> None:
        """This rank cannot take part: rounds under way and later ones fail on all ranks.

        They raise MismatchError with the tensor's name and `reason`.
        """
        self.native.refuse(reason)

    def mirrored(self) -> list[tuple[int, int, list[bytes]]]:
        """What this rank mirrors of a variable: first element, the one after the last, the parts.

        The ranks together mirror each element once, in an elastic job twice. Nothing before
        set_state().
        """
        return [] if self._is_empty else self.native.mirrored()

    def submit_staged(
        self,
        send: int,
        receive: int,
        *,
        keep: object,
        slice_bytes: int,
        on_slice: Callable[[int], object],
        priority: int = 0,
        tag: str = "",
        update: Sequence[float] | None = None,
        order: Sequence[tuple[int, int, int, int]] | None = None,
        rescale: float = 1.0,
    ) -> tuple[RoundHandle, Supply]:
        """Starts one round as submit() does, before its contribution is in the memory.

        What is supplied is sent from then on, in whole partitions. If this rank receives,
        `on_slice(i)` is called from another thread as soon as all of slice `i` of the result, of
        `slice_bytes`, is final. The tensor must have elements.
        """
        self._note()
        restored = self._set_memory()
        round_, supply = self.native.submit_staged(
            send, receive, priority, tag, keep, slice_bytes, on_slice, update, order, rescale
        )
        return self._after_restoring(restored, round_), supply

    def submit_staged_deferred(
        self,
        send: int,
        receive: int,
        *,
        keep: object,
        slice_bytes: int,
        on_slice: Callable[[int], object],
        priority: int = 0,
        tag: str = "",
    ) -> tuple[RoundHandle, Supply, Decision]:
        """Starts one round as submit_deferred() does, supplied as one of submit_staged()."""
        self._note()
        return self.native.submit_staged_deferred(
            send, receive, priority, tag, keep, slice_bytes, on_slice
        )

    def _note(self) -> None:
        """A round begins."""
        if (begun := self.session.begun) is not None:
            begun.append((self, time.monotonic()))


class TensorCycle:
    """Tensors of one description that take turns.

    As many rounds may be in flight as there are tensors before a new one queues behind the oldest.
    """

    # The tensors for the next rounds; the same on all ranks that take them in one order.
    turns: Iterator[Tensor]

    def __init__(self, session: Session, name: str, description: Description, length: int) -> None:
        self._session, self._name, self._description = session, name, description
        self._length = length
        self.restart()

    def restart(self) -> None:
        """Begins with the first tensor again."""
        names = [f"{self._name}.{index}" for index in range(self._length)]
        # Without a reference to this object, which would be one of a cycle.
        declare, described = self._session.declare, self._description
        self.turns = itertools.cycle(declare(name, *described) for name in names)
