"""How a collective of torch.distributed becomes rounds of the core.

Collectives have no names, so a name is made of everything that must agree across ranks plus a
small counter; the tag says which call of the group it was, for the message when ranks disagree.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from sumpter._session import Handle, Session
from sumpter.torch.handles import Identity, submit
from sumpter.torch.tensors import (
    DTYPE_NAMES,
    WireForm,
    check_carried,
    moved_form,
    readable,
    writable,
)
from sumpter.torch.work import SumpterWork

# Rounds of one description in flight before the next queues behind the oldest. DDP has one
# bucket of a given size in flight, FSDP a few; more would only lengthen the tensor table.
SLOTS = 4

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
    sequence: int = 0
    era: int = 0

    @property
    def prefix(self) -> str:
        """With what the names of the group's tensors begin."""
        era = f"~{self.era}" if self.era else ""
        return f"c10d.{self.label}{era}"

    def begin_era(self, after: int) -> None:
        """Ranks differed in the call number `after`."""
        self.era = max(self.era, after + 1)


def in_group(label: str, group: Group) -> str:
    """A call and its group, as error messages show them."""
    return f"{label} of group {group.label}"


class Call:
    """One collective while its rounds are being submitted.

    A round's tensor is seen as flat, since torch's collectives compare sizes and not shapes.
    """

    def __init__(self, group: Group, kind: str, opts: Any) -> None:
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
        kind: str,
        source: torch.Tensor,
        target: torch.Tensor | None,
        op: dist.ReduceOp,
        root: int | None = None,
        priority: int = 0,
    ) -> None:
        """Adds a reduction into `target` on every rank, or on the group's rank `root`."""
        check_carried(source)
        reduction = _reduction(source.dtype, op.op)
        send = readable(source)
        if reduction.premultiplies:
            send = send * op.factor
        receives = target is not None and root in (None, self._group.rank)
        in_place = target is source and send.data_ptr() == source.data_ptr()
        receive = (send if in_place else writable(target)) if receives else None
        self._submit(
            kind,
            source,
            reduction.word if root is None else f"{reduction.word}, root {root}",
            WireForm((source.numel(),), reduction.wire_dtype),
            send,
            receive,
            op=reduction.core_op,
            root=self._global(root or 0),
            average=reduction.averages,
            priority=priority,
        )
        if receives and reduction.divides:
            # Rounded towards zero, as NCCL does; Lightning averages counts so.
            divisor = self._size()
            self._after.append(lambda: receive.div_(divisor, rounding_mode="trunc"))
        if receives:
            self._copy_back(target, receive)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Adds a broadcast in place from the group's rank `root`."""
        check_carried(tensor)
        is_root = root == self._group.rank
        memory = readable(tensor) if is_root else writable(tensor)
        self._submit(
            "broadcast",
            tensor,
            f"root {root}",
            _flat(moved_form(tensor)),
            memory if is_root else None,
            memory,
            root=self._global(root),
        )
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
            self._rounds, outputs, self._finish, self._timeout_s, label, self._disagreed
        )

    def _submit(
        self,
        kind: str,
        tensor: torch.Tensor,
        detail: str,
        form: WireForm,
        send: torch.Tensor | None,
        receive: torch.Tensor | None,
        **options: Any,
    ) -> None:
        label, name = _words(self._kind, tensor.dtype, tensor.numel(), detail)
        place = f"{self._place}.{len(self._rounds)}" if self._rounds else self._place
        if not self._rounds:
            self._label = label
        name = self._session.unnamed(f"{self._group.prefix}.{name}", SLOTS)
        identity = Identity(name, f"{place}|{label}")
        ranks = self._group.ranks
        self._rounds.append(
            submit(self._session, kind, identity, form, send, receive, ranks=ranks, **options)
        )

    def _global(self, rank: int) -> int:
        return rank if self._group.ranks is None else self._group.ranks[rank]

    def _size(self) -> int:
        ranks = self._group.ranks
        return self._session.world_size if ranks is None else len(ranks)

    def _copy_back(self, target: torch.Tensor, memory: torch.Tensor) -> None:
        if memory.data_ptr() != target.data_ptr():
            self._after.append(lambda: target.detach().copy_(memory))

    def _disagreed(self) -> None:
        self._group.begin_era(self._sequence)

    def _finish(self) -> None:
        for action in self._after:
            action()


def reducible(tensors: list[torch.Tensor], op: dist.ReduceOp) -> bool:
    """Whether the core has a kernel for this reduction of these tensors."""
    kind = op.op
    for tensor in tensors:
        if tensor.layout is not torch.strided or _reduction(tensor.dtype, kind) is None:
            return False
    return True


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


# A collective on few bytes costs as much as the Python that leads to it, so what does not change
# from call to call is looked up.
@functools.lru_cache(maxsize=256)
def _reduction(dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> _Reduction | None:
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


@functools.lru_cache(maxsize=1024)
def _words(kind: str, dtype: torch.dtype, count: int, detail: str) -> tuple[str, str]:
    """A call as messages show it, and what must agree across ranks as part of a name."""
    name = str(dtype).removeprefix("torch.")
    return f"{kind}({name} [{count}], {detail})", f"{kind}.{name}.{count}.{detail}"


def _flat(form: WireForm) -> WireForm:
    return WireForm((math.prod(form.shape),), form.dtype)
