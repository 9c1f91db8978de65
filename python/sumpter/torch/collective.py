"""How a collective of torch.distributed becomes rounds of the core.

Collectives have no names, so a name is made of everything that must agree across ranks plus a
small counter; the tag says which call of the group it was, for the message when ranks disagree.
"""

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
    describe,
    dtype_name,
    moved_form,
    readable,
    reduced_form,
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
    ) -> None:
        """Adds a reduction into `target` on every rank, or on the group's rank `root`."""
        check_carried(source)
        core_op = _core_op(source, op)
        form = reduced_form(source, core_op)
        send = readable(source)
        if op.op == dist.ReduceOp.RedOpType.PREMUL_SUM:
            send = send * op.factor
        receives = target is not None and root in (None, self._group.rank)
        receive = writable(target) if receives else None
        average = op.op == dist.ReduceOp.RedOpType.AVG
        detail = op.op.name.lower() if root is None else f"{op.op.name.lower()}, root {root}"
        self._submit(
            kind,
            source,
            detail,
            form,
            send,
            receive,
            op=core_op,
            root=self._global(root or 0),
            average=average and source.is_floating_point(),
        )
        if receives and average and not source.is_floating_point():
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
            moved_form(tensor),
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
        count = tensor.numel()
        label = describe(self._kind, tensor, [count], detail)
        name = f"{self._group.prefix}.{self._kind}.{dtype_name(tensor)}.{count}.{detail}"
        place = f"{self._place}.{len(self._rounds)}" if self._rounds else self._place
        if not self._rounds:
            self._label = label
        identity = Identity(self._session.unnamed(name, SLOTS), f"{place}|{label}")
        flat = WireForm((math.prod(form.shape),), form.dtype)
        ranks = self._group.ranks
        self._rounds.append(
            submit(self._session, kind, identity, flat, send, receive, ranks=ranks, **options)
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
    if op.op not in _OPS or any(tensor.layout != torch.strided for tensor in tensors):
        return False
    scales = op.op == dist.ReduceOp.RedOpType.PREMUL_SUM
    divides = op.op == dist.ReduceOp.RedOpType.AVG
    return all(
        (tensor.dtype in DTYPE_NAMES and (tensor.dtype.is_floating_point or not scales))
        or (tensor.dtype == torch.bool and not scales and not divides)
        for tensor in tensors
    )


def _core_op(tensor: torch.Tensor, op: dist.ReduceOp) -> str:
    # As with NCCL, a sum of truth values is their "or".
    if tensor.dtype == torch.bool and op.op == dist.ReduceOp.RedOpType.SUM:
        return "max"
    return _OPS[op.op]
