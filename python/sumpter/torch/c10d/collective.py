"""How a collective of torch.distributed becomes rounds of the core.

Collectives have no names, so a name is made of everything that must agree across ranks plus a
small counter; the tag says which call of the group it was, for the message when ranks disagree.
"""

import collections
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist

from sumpter._core.callbacks import CallbackQueue, is_in_callback, running
from sumpter._core.compression.choice import BY_SETTING, Limits
from sumpter._core.session import Session
from sumpter._core.tensor import Description, Tensor, TensorCycle
from sumpter._native import Calls
from sumpter.torch.c10d.work import SumpterWork
from sumpter.torch.tensors import (
    DTYPE_NAMES,
    check_carried,
    is_sharded,
    moved_form,
    readable,
    start_round,
    writable,
)

# Rounds of one description in flight before the next queues behind the oldest. DDP has one
# bucket of a given size in flight, FSDP a few; more would only lengthen the tensor table.
SLOTS = 4

# Rounds a group keeps. A model has tens of sizes; a script without end of them starts anew.
KEPT_ROUNDS = 1024

# Of a round: the call, element type, layout, elements, reduction, root, and whether a device group
# reduces it.
_Key = tuple[str, torch.dtype, torch.layout, int, int | None, int | None, bool]

_PREMUL_SUM = dist.ReduceOp.RedOpType.PREMUL_SUM
_OPS = {
    dist.ReduceOp.RedOpType.SUM: "sum",
    dist.ReduceOp.RedOpType.AVG: "sum",
    dist.ReduceOp.RedOpType.PREMUL_SUM: "sum",
    dist.ReduceOp.RedOpType.MIN: "min",
    dist.ReduceOp.RedOpType.MAX: "max",
    dist.ReduceOp.RedOpType.PRODUCT: "product",
}


# How many groups of each name there have been in a session.
_groups: "weakref.WeakKeyDictionary[Session, collections.Counter[str]]" = (
    weakref.WeakKeyDictionary()
)


@dataclass(slots=True)
class Group:
    """The members of a process group, and how many collectives it has begun.

    A call in which ranks differed leaves names behind that only some of them have used. What
    comes after such a call therefore belongs to another era, with names of its own. The era is
    the number of that call, so that it is the same on all ranks.
    """

    session: Session
    label: str
    rank: int
    # The members' ranks in the job; None for all of them in order.
    ranks: tuple[int, ...] | None
    timeout_s: float
    # Whether wait() of a device's tensors leaves the waiting to streams.
    streams_wait: bool = True
    # By which codec floats are added in an all-reduce, if there are enough of them.
    limits: Limits = Limits("", 0)
    era: int = 0
    # What the calls of this era add to their signature. A rank that has not seen ranks differ, or
    # not yet, makes its next call under a name of the last era: that call differs, too, and the
    # ranks agree again.
    after: str = ""
    # For the futures of its collectives.
    callbacks: CallbackQueue = field(default_factory=CallbackQueue)
    # Whether a collective's number is the same on all ranks: until callbacks begin some as well,
    # at moments that differ. Ranks are then matched by descriptions alone.
    is_numbered: bool = True
    # A collective on few bytes costs as much as the Python that leads to it, so what does not
    # change from call to call is made once, and what is begun in one call is known there.
    kept: "dict[_Key, _Kept]" = field(default_factory=dict)
    calls: Calls = field(init=False)

    def __post_init__(self) -> None:
        self.calls = Calls(self.label, torch.Tensor)

    @property
    def size(self) -> int:
        return self.session.world_size if self.ranks is None else len(self.ranks)

    def shown(self, call: str) -> str:
        """A call and its group, as error messages show them."""
        return f"{call} of group {self.label}"

    def begin_era(self, after: int) -> None:
        """Ranks differed in the call number `after`."""
        if after >= self.era:
            self.era = after + 1
            self.after = f", after call #{after} failed"
            # Their tensors have the names of the last era.
            self._forget()

    def reduction(
        self, kind: str, tensor: torch.Tensor, op: int, root: int | None
    ) -> "_Kept | None":
        """How a collective reduces a tensor for all ranks, or for the group's rank `root`.

        None if the core has no kernel for it. `op` is an op_number().
        """
        sharded = not tensor.is_cpu and self.is_sharded(kind, tensor)
        key = (kind, tensor.dtype, tensor.layout, tensor.numel(), op, root, sharded)
        return self.kept.get(key) or self.make_reduction(key)

    def broadcast(self, call: str, tensor: torch.Tensor, root: int) -> "_Kept":
        """How a `call` copies `tensor` from the group's rank `root`."""
        key = (call, tensor.dtype, tensor.layout, tensor.numel(), None, root, False)
        return self.kept.get(key) or self._keep(key, self._make_broadcast(call, tensor, root))

    def is_sharded(self, kind: str, tensor: torch.Tensor) -> bool:
        """Whether devices reduce a tensor in collectives of a kind."""
        return kind == "all_reduce" and is_sharded(self.session, tensor, self.ranks)

    def make_reduction(self, key: _Key) -> "_Kept | None":
        """How the reduction of this key is done from now on."""
        kind, dtype, layout, count, op, root, sharded = key
        how = _find_kernel(dtype, dist.ReduceOp.RedOpType(op))
        if how is None or layout is not torch.strided:
            return None
        sums = kind == "all_reduce" and how.core_op == "sum" and not sharded
        codec = self.limits.codec_of(BY_SETTING, (count,), how.wire_dtype, sums, named=False)
        described = Description(
            kind,
            (count,),
            how.wire_dtype,
            how.core_op,
            root=self._global(root or 0),
            average=how.averages,
            ranks=self.ranks,
            sharded=sharded,
            compression=codec,
        )
        detail = how.word if root is None else f"{how.word}, root {root}"
        detail = f"{detail} on devices" if sharded else detail
        detail = f"{detail} by {codec}" if codec else detail
        label, name = _words(kind, dtype, count, detail)
        plain = root in (None, self.rank) and not how.premultiplies and not how.divides
        made = _Kept(
            self._cycle(name, described),
            label,
            root,
            premultiplies=how.premultiplies,
            divides=how.divides,
            is_plain=plain,
            is_alone=self.size == 1,
        )
        self._keep(key, made)
        if kind == "all_reduce" and plain:
            self._learn(key, made)
        return made

    def bucket(self, name: str, tensor: torch.Tensor, codec: str) -> "_Kept":
        """How the average of `tensor` travels by a codec, that of the bucket of this name.

        By the name it is known what the codec left out of the bucket before.
        """
        described = Description(
            "all_reduce",
            (tensor.numel(),),
            DTYPE_NAMES[tensor.dtype],
            average=True,
            ranks=self.ranks,
            sharded=self.is_sharded("all_reduce", tensor),
            compression=codec,
        )
        label, own = _words("all_reduce", tensor.dtype, tensor.numel(), f"avg by {codec}, {name}")
        plain, alone = True, self.size == 1
        return _Kept(self._cycle(own, described, 1), label, None, is_plain=plain, is_alone=alone)

    def _learn(self, key: _Key, made: "_Kept") -> None:
        """Lets an all-reduce in place be begun in one call, if all there is to it is a round."""
        _, dtype, _, count, op, _, _ = key
        if self.session.device_link is not None or (made.is_alone and self.session.has_timeline):
            return
        like, cycle = torch.empty(1, dtype=dtype), None if made.is_alone else made.tensors
        self.calls.learn(like, count, op, cycle, made.label, f"{made.label}{self.after}")

    def _make_broadcast(self, call: str, tensor: torch.Tensor, root: int) -> "_Kept":
        shape, dtype = moved_form(tensor)
        described = Description(
            "broadcast", (math.prod(shape),), dtype, root=self._global(root), ranks=self.ranks
        )
        label, name = _words(call, tensor.dtype, tensor.numel(), f"root {root}")
        return _Kept(self._cycle(name, described), label, root)

    def agreement(self, label: str) -> Tensor:
        """The tensor for a round that moves nothing and fails where calls are not all `label`."""
        described = Description("barrier", (1,), "uint8", ranks=self.ranks)
        return next(self._cycle(label, described).turns)

    def _cycle(self, name: str, described: Description, slots: int = SLOTS) -> TensorCycle:
        era = f"~{self.era}" if self.era else ""
        return self.session.cycle(f"c10d.{self.label}{era}.{name}", slots, described)

    def _global(self, rank: int) -> int:
        return rank if self.ranks is None else self.ranks[rank]

    def _keep(self, key: _Key, made: "_Kept") -> "_Kept":
        if len(self.kept) == KEPT_ROUNDS:
            self._forget()
        self.kept[key] = made
        return made

    def _forget(self) -> None:
        self.kept.clear()
        self.calls.forget()


def label_of(session: Session, name: str) -> str:
    """The label of the next group of this name, which has no call in common with the last one."""
    groups = _groups.setdefault(session, collections.Counter())
    groups[name] += 1
    return name if groups[name] == 1 else f"{name}:{groups[name]}"


class Call(SumpterWork):
    """One collective of a group, to which its rounds are added as they are submitted.

    A round's tensor is seen as flat, since torch's collectives compare sizes and not shapes.
    """

    spares: "ClassVar[list[Call]]" = []

    @classmethod
    def of(
        cls,
        group: Group,
        kind: str,
        opts: Any,
        outputs: list[torch.Tensor],
        in_place: "Sequence[_Kept]" = (),
        priority: int = 0,
        rescale: float = 1.0,
    ) -> "Call":
        """Begins a collective, with a reduction of each output into itself for those `in_place`.

        Raises what went wrong with one that was not waited for. It is in one piece since, with cold
        caches, every function on the way takes microseconds.
        """
        session = group.session
        if session.await_failures is not None:
            session.await_failures()
        if session.late is not None:
            session.raise_late()
        if running and group.is_numbered and is_in_callback():
            group.is_numbered = False
        sequence = group.calls.next()
        call = cls()
        # What begin() does as well.
        call._group = group
        call._label = kind
        call._outputs = outputs
        call._rounds = rounds = []
        call._begun = monotonic()
        call._group_timeout_s = group.timeout_s
        call._opts = opts
        call._sequence = sequence
        if outputs and not outputs[0].is_cpu:
            call._finishing = threading.Lock()
        for kept, output in zip(in_place, outputs, strict=False):
            if not (
                kept.is_plain
                and output.is_cpu
                and output.is_contiguous()
                # What is reduced is real, so nothing is conjugated.
                and not output.is_neg()
            ):
                call.reduce(kept, output, output, opts.reduceOp, priority, rescale)
                continue
            if kept.is_alone and not session.has_timeline:
                continue
            if rounds or not group.is_numbered:
                tag = call._tag(kept.label)
            else:
                call._label = kept.label
                tag = f"{group.label}#{sequence}|{kept.label}{group.after}"
            address, tensor = output.data_ptr(), next(kept.tensors.turns)
            # What is kept is the memory, even if the caller's tensor gets another meanwhile.
            memory = output.untyped_storage()
            round_ = tensor.submit(address, address, memory, priority, tag, rescale=rescale)
            if session.device_link is not None:
                session.device_link.follow(tensor.name, tag, round_)
            rounds.append(round_)
        return call

    def reduce(
        self,
        kept: "_Kept",
        source: torch.Tensor,
        target: torch.Tensor | None,
        op: dist.ReduceOp,
        priority: int = 0,
        rescale: float = 1.0,
    ) -> None:
        """Adds a reduction of `source` into `target`, if this rank is to receive it."""
        if not source.is_cpu:
            check_carried(source)
        send = readable(source)
        if kept.premultiplies:
            send = send * op.factor
        receives = target is not None and kept.root in (None, self._group.rank)
        in_place = target is source and send.data_ptr() == source.data_ptr()
        receive = (send if in_place else writable(target)) if receives else None
        self._add_round(kept, send, receive, priority, rescale)
        if receives and kept.divides:
            # Rounded towards zero, as NCCL does; Lightning averages counts so.
            divisor = self._group.size
            self._then(lambda: receive.div_(divisor, rounding_mode="trunc"))
        if receives and not in_place:
            self._copy_back(target, receive)

    def broadcast(self, tensor: torch.Tensor, root: int, kind: str = "broadcast") -> None:
        """Adds a broadcast in place from the group's rank `root`, as part of a `kind`."""
        check_carried(tensor)
        is_root = root == self._group.rank
        memory = readable(tensor) if is_root else writable(tensor)
        kept = self._group.broadcast(kind, tensor, root)
        self._add_round(kept, memory if is_root else None, memory)
        if not is_root:
            self._copy_back(tensor, memory)

    def done(self) -> None:
        """Waits, in place of a caller to which a collective returns when it is done."""
        self.wait()

    def barrier(self) -> None:
        """Adds a barrier of the group."""
        self.meet("barrier()")

    def meet(self, label: str) -> None:
        """Adds a round that moves nothing and fails where another rank's call is not `label`."""
        self._label = label
        tensor = self._group.agreement(label)
        self._rounds.append(tensor.submit(0, 0, keep=None, tag=self._tag(label)))

    def _add_round(
        self,
        kept: "_Kept",
        send: torch.Tensor | None,
        receive: torch.Tensor | None,
        priority: int = 0,
        rescale: float = 1.0,
    ) -> None:
        tensor, tag = next(kept.tensors.turns), self._tag(kept.label)
        round_ = start_round(tensor, send, receive, priority, tag, rescale=rescale)
        link = self._group.session.device_link
        if link is not None and (send if receive is None else receive).is_cpu:
            link.follow(tensor.name, tag, round_)
        self._rounds.append(round_)

    def _tag(self, label: str) -> str:
        """What the next round says of itself: by its place, ranks that differ are found."""
        group, index = self._group, len(self._rounds)
        if not index:
            self._label = label
        if not group.is_numbered:
            return label
        part = f".{index}" if index else ""
        return f"{group.label}#{self._sequence}{part}|{label}{group.after}"

    def _copy_back(self, target: torch.Tensor, memory: torch.Tensor) -> None:
        if memory.data_ptr() != target.data_ptr():
            self._then(lambda: target.detach().copy_(memory))

    def _then(self, action: Callable[[], object]) -> None:
        if self._finishing is None:
            self._finishing = threading.Lock()
        self._after = (*self._after, action)

    def _disagreed(self) -> None:
        self._group.begin_era(self._sequence)


def _number_by_name(op: dist.ReduceOp) -> int:
    return int(op.op)


# torch's number of a reduction. Its names take long to make and to compare; its hash is its number.
op_number: Callable[[dist.ReduceOp], int] = (
    hash
    if all(hash(dist.ReduceOp(op)) == int(op) for op in _OPS if op != _PREMUL_SUM)
    else _number_by_name
)


def reduce_in_place(
    group: Group,
    kind: str,
    tensors: list[torch.Tensor],
    root: int | None,
    opts: Any,
    priority: int = 0,
) -> Call | None:
    """A collective that reduces each tensor for all ranks, or for the group's rank `root`.

    None, and nothing is begun, if the core has no kernel for one of them. With cold caches, every
    function on the way takes microseconds, so there are few.
    """
    number, session = op_number(opts.reduceOp), group.session
    if (
        root is None
        and len(tensors) == 1
        and group.is_numbered
        and not running
        and session.late is None
        and session.await_failures is None
        and session.begun is None
    ):
        begun = group.calls.reduce(tensors[0], number, priority)
        if begun is not None:
            try:
                call = Call.spares.pop()
            except IndexError:
                call = Call()
            # What of() sets.
            call._group = group
            call._outputs = tensors
            call._begun = monotonic()
            call._group_timeout_s = group.timeout_s
            call._opts = opts
            round_, call._label, call._sequence = begun
            call._rounds = [] if round_ is None else [round_]
            return call
    kept = []
    for tensor in tensors:
        sharded = not tensor.is_cpu and group.is_sharded(kind, tensor)
        key = (kind, tensor.dtype, tensor.layout, tensor.numel(), number, root, sharded)
        how = group.kept.get(key) or group.make_reduction(key)
        if how is None:
            return None
        kept.append(how)
    return Call.of(group, kind, opts, tensors, kept, priority)


class _Kept(NamedTuple):
    """What every call of one kind on so many elements of one type has in common."""

    tensors: TensorCycle
    # The call as messages show it.
    label: str
    # The group's rank that differs from the others.
    root: int | None
    # What is left to do here: PREMUL_SUM's factor, and averages of integers.
    premultiplies: bool = False
    divides: bool = False
    # Whether what is sent is what lies in the tensor, and what is received the result.
    is_plain: bool = False
    # Whether no other rank takes part.
    is_alone: bool = False


@dataclass(frozen=True)
class _Reduction:
    """How the core carries one of torch's reductions of one element type."""

    word: str
    core_op: str
    wire_dtype: str
    premultiplies: bool
    # By the core, for floating-point numbers; the others are divided here.
    averages: bool
    divides: bool


def _find_kernel(dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> _Reduction | None:
    """How the core reduces elements of `dtype`; None if it has no kernel."""
    kinds = dist.ReduceOp.RedOpType
    average, premultiplies = op == kinds.AVG, op == kinds.PREMUL_SUM
    core_op, wire_dtype = _OPS.get(op), DTYPE_NAMES.get(dtype)
    if dtype == torch.bool and not average and not premultiplies:
        wire_dtype = "uint8"
        # As with NCCL, a sum of truth values is their "or".
        core_op = "max" if op == kinds.SUM else core_op
    if core_op is None or wire_dtype is None or (premultiplies and not dtype.is_floating_point):
        return None
    averages = average and dtype.is_floating_point
    divides = average and not averages
    return _Reduction(op.name.lower(), core_op, wire_dtype, premultiplies, averages, divides)


def _words(kind: str, dtype: torch.dtype, count: int, detail: str) -> tuple[str, str]:
    """A call as messages show it, and what must agree across ranks as part of a name."""
    name = str(dtype).removeprefix("torch.")
    return f"{kind}({name} [{count}], {detail})", f"{kind}.{name}.{count}.{detail}"
