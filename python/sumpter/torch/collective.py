"""How a collective of torch.distributed becomes rounds of the core.

Collectives have no names, so a name is made of everything that must agree across ranks plus a
small counter; the tag says which call of the group it was, for the message when ranks disagree.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from sumpter import _native
from sumpter._session import Handle, Session
from sumpter.torch.handles import submit
from sumpter.torch.names import Identity
from sumpter.torch.tensors import DTYPE_NAMES, check_carried, moved_form, readable, writable
from sumpter.torch.work import SumpterWork

# Rounds of one description in flight before the next queues behind the oldest. DDP has one
# bucket of a given size in flight, FSDP a few; more would only lengthen the tensor table.
SLOTS = 4

# Rounds a group keeps. A model has tens of sizes; a script without end of them starts anew.
KEPT_ROUNDS = 1024

# Of a round: its kind, the call, element type, elements, reduction, root.
_Key = tuple[str, str, torch.dtype, int, int | None, int | None]

_OPS = {
    dist.ReduceOp.RedOpType.SUM: "sum",
    dist.ReduceOp.RedOpType.AVG: "sum",
    dist.ReduceOp.RedOpType.PREMUL_SUM: "sum",
    dist.ReduceOp.RedOpType.MIN: "min",
    dist.ReduceOp.RedOpType.MAX: "max",
    dist.ReduceOp.RedOpType.PRODUCT: "product",
}


@dataclass
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
    ranks: list[int] | None
    timeout_s: float
    # Whether wait() of a device's tensors leaves the waiting to streams.
    follows: bool = True
    sequence: int = 0
    era: int = 0
    # A collective on few bytes costs as much as the Python that leads to it, so what does not
    # change from call to call is made once.
    _kept: "dict[_Key, _Kept]" = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """With what the names of the group's tensors begin."""
        era = f"~{self.era}" if self.era else ""
        return f"c10d.{self.label}{era}"

    @property
    def size(self) -> int:
        return self.session.world_size if self.ranks is None else len(self.ranks)

    def begin_era(self, after: int) -> None:
        """Ranks differed in the call number `after`."""
        self.era = max(self.era, after + 1)

    def reduction(
        self, kind: str, call: str, tensor: torch.Tensor, op: dist.ReduceOp, root: int | None
    ) -> "_Kept | None":
        """How a `call` reduces `tensor` to all ranks, or to the group's rank `root`.

        None if the core has no kernel for that.
        """
        if tensor.layout is not torch.strided:
            return None
        # As a number, since torch's names of reductions take long to compare.
        key = (kind, call, tensor.dtype, tensor.numel(), int(op.op), root)
        kept = self._kept.get(key)
        if kept is None:
            how = _find_kernel(tensor.dtype, op.op)
            if how is None:
                return None
            kept = self._keep(key, self._make_reduction(kind, call, tensor, how, root))
        return kept

    def broadcast(self, call: str, tensor: torch.Tensor, root: int) -> "_Kept":
        """How a `call` copies `tensor` from the group's rank `root`."""
        key = ("broadcast", call, tensor.dtype, tensor.numel(), None, root)
        return self._kept.get(key) or self._keep(key, self._make_broadcast(call, tensor, root))

    def _make_reduction(
        self, kind: str, call: str, tensor: torch.Tensor, how: "_Reduction", root: int | None
    ) -> "_Kept":
        count = tensor.numel()
        round_ = _native.Round(
            kind,
            (count,),
            how.wire_dtype,
            how.core_op,
            root=self._global(root or 0),
            average=how.averages,
            ranks=self.ranks,
        )
        detail = how.word if root is None else f"{how.word}, root {root}"
        words = _words(call, tensor.dtype, count, detail)
        return _Kept(round_, *words, root, how.premultiplies, how.divides)

    def _make_broadcast(self, call: str, tensor: torch.Tensor, root: int) -> "_Kept":
        shape, dtype = moved_form(tensor)
        round_ = _native.Round(
            "broadcast", (math.prod(shape),), dtype, root=self._global(root), ranks=self.ranks
        )
        return _Kept(round_, *_words(call, tensor.dtype, tensor.numel(), f"root {root}"), root)

    def _global(self, rank: int) -> int:
        return rank if self.ranks is None else self.ranks[rank]

    def _keep(self, key: _Key, made: "_Kept") -> "_Kept":
        if len(self._kept) == KEPT_ROUNDS:
            self._kept.clear()
        self._kept[key] = made
        return made


def in_group(label: str, group: Group) -> str:
    """A call and its group, as error messages show them."""
    return f"{label} of group {group.label}"


class Call:
    """One collective while its rounds are being submitted.

    A round's tensor is seen as flat, since torch's collectives compare sizes and not shapes.
    """

    def __init__(self, group: Group, kind: str, opts: Any) -> None:
        group.session.raise_late()
        self._group = group
        self._session = group.session
        self._kind = kind
        self._label = kind
        self._sequence = group.sequence
        self._place = f"{group.label}#{group.sequence}"
        group.sequence += 1
        timeout_s = opts.timeout.total_seconds()
        self._timeout_s = timeout_s if timeout_s > 0 else group.timeout_s
        self._rounds: list[Handle] = []
        self._after: list[Callable[[], object]] = []

    def reduce(
        self,
        kept: "_Kept",
        source: torch.Tensor,
        target: torch.Tensor | None,
        op: dist.ReduceOp,
        priority: int = 0,
    ) -> None:
        """Adds a reduction of `source` into `target`, if this rank is to receive it."""
        check_carried(source)
        send = readable(source)
        if kept.premultiplies:
            send = send * op.factor
        receives = target is not None and kept.root in (None, self._group.rank)
        in_place = target is source and send.data_ptr() == source.data_ptr()
        receive = (send if in_place else writable(target)) if receives else None
        self._submit(kept, send, receive, priority)
        if receives and kept.divides:
            # Rounded towards zero, as NCCL does; Lightning averages counts so.
            divisor = self._group.size
            self._after.append(lambda: receive.div_(divisor, rounding_mode="trunc"))
        if receives and not in_place:
            self._copy_back(target, receive)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Adds a broadcast in place from the group's rank `root`."""
        check_carried(tensor)
        is_root = root == self._group.rank
        memory = readable(tensor) if is_root else writable(tensor)
        kept = self._group.broadcast(self._kind, tensor, root)
        self._submit(kept, memory if is_root else None, memory)
        if not is_root:
            self._copy_back(tensor, memory)

    def barrier(self) -> None:
        """Adds a barrier of the group."""
        self.meet("barrier()")

    def meet(self, label: str) -> None:
        """Adds a round that moves nothing and fails where another rank's call is not `label`."""
        name = self._session.unnamed(f"{self._group.prefix}.{label}", SLOTS)
        self._label = label
        self._rounds.append(
            self._session.barrier(name, self._group.ranks, f"{self._place}|{label}")
        )

    def work(self, outputs: list[torch.Tensor]) -> SumpterWork:
        """The Work of all rounds added so far."""
        label = in_group(self._label, self._group)
        return SumpterWork(
            self._rounds,
            outputs,
            self._finish,
            self._timeout_s,
            label,
            self._disagreed,
            self._group.follows,
        )

    def _submit(
        self,
        kept: "_Kept",
        send: torch.Tensor | None,
        receive: torch.Tensor | None,
        priority: int = 0,
    ) -> None:
        place = f"{self._place}.{len(self._rounds)}" if self._rounds else self._place
        if not self._rounds:
            self._label = kept.label
        name = self._session.unnamed(f"{self._group.prefix}.{kept.name}", SLOTS)
        identity = Identity(name, f"{place}|{kept.label}")
        self._rounds.append(submit(self._session, kept.round_, identity, send, receive, priority))

    def _copy_back(self, target: torch.Tensor, memory: torch.Tensor) -> None:
        if memory.data_ptr() != target.data_ptr():
            self._after.append(lambda: target.detach().copy_(memory))

    def _disagreed(self) -> None:
        self._group.begin_era(self._sequence)

    def _finish(self) -> None:
        for action in self._after:
            action()


class _Kept(NamedTuple):
    """What every call of one kind on so many elements of one type has in common."""

    round_: _native.Round
    # The call as messages show it, and what must agree across ranks as part of a name.
    label: str
    name: str
    # The group's rank that differs from the others.
    root: int | None
    # What is left to do here: PREMUL_SUM's factor, and averages of integers.
    premultiplies: bool = False
    divides: bool = False


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
