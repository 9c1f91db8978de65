"""How a collective of torch.distributed becomes rounds of the core.

Collectives have no names, so a name is made of everything that must agree across ranks plus a
small counter; the tag says which call of the group it was, for the message when ranks disagree.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from sumpter import _native
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

# Rounds a group keeps. A model has tens of sizes; a script without end of them starts anew.
KEPT_ROUNDS = 1024

# Of a round: its kind, the call, element type, elements, reduction, root.
_Key = tuple[str, str, torch.dtype, int, dist.ReduceOp.RedOpType | None, int | None]

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
    # A collective on few bytes costs as much as the Python that leads to it, so what does not
    # change from call to call is made once.
    _rounds: "dict[_Key, _Round]" = field(default_factory=dict)

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
        self,
        kind: str,
        call: str,
        source: torch.Tensor,
        op: dist.ReduceOp.RedOpType,
        root: int | None,
    ) -> "_Round":
        """The round by which a `call` reduces `source` to all ranks, or to the group's `root`."""
        dtype, count = source.dtype, source.numel()
        key = (kind, call, dtype, count, op, root)
        known = self._rounds.get(key)
        if known is not None:
            return known
        how = _reduction(dtype, op)
        detail = how.word if root is None else f"{how.word}, root {root}"
        made = _Round(
            kind,
            _words(call, dtype, count, detail),
            WireForm((count,), how.wire_dtype),
            op=how.core_op,
            root=self._global(root or 0),
            average=how.averages,
            ranks=self.ranks,
        )
        made.premultiplies, made.divides = how.premultiplies, how.divides
        return self._keep(key, made)

    def broadcast(self, call: str, tensor: torch.Tensor, root: int) -> "_Round":
        """The round by which a `call` copies `tensor` from the group's rank `root`."""
        dtype, count = tensor.dtype, tensor.numel()
        key = ("broadcast", call, dtype, count, None, root)
        known = self._rounds.get(key)
        if known is not None:
            return known
        made = _Round(
            "broadcast",
            _words(call, dtype, count, f"root {root}"),
            _flat(moved_form(tensor)),
            root=self._global(root),
            ranks=self.ranks,
        )
        return self._keep(key, made)

    def _global(self, rank: int) -> int:
        return rank if self.ranks is None else self.ranks[rank]

    def _keep(self, key: _Key, made: "_Round") -> "_Round":
        if len(self._rounds) == KEPT_ROUNDS:
            self._rounds.clear()
        self._rounds[key] = made
        return made


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
        round_ = self._group.reduction(kind, self._kind, source, op.op, root)
        send = readable(source)
        if round_.premultiplies:
            send = send * op.factor
        receives = target is not None and (root is None or root == self._group.rank)
        in_place = target is source and send.data_ptr() == source.data_ptr()
        receive = (send if in_place else writable(target)) if receives else None
        self._submit(round_, send, receive, priority)
        if receives and round_.divides:
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
        round_ = self._group.broadcast(self._kind, tensor, root)
        self._submit(round_, memory if is_root else None, memory)
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
        round_: "_Round",
        send: torch.Tensor | None,
        receive: torch.Tensor | None,
        priority: int = 0,
    ) -> None:
        place = f"{self._place}.{len(self._rounds)}" if self._rounds else self._place
        if not self._rounds:
            self._label = round_.label
        name = self._session.unnamed(f"{self._group.prefix}.{round_.name}", SLOTS)
        tag = f"{place}|{round_.label}"
        if (send if receive is None else receive).is_cpu:
            handle = self._session.start(
                round_.spec,
                name,
                tag,
                0 if send is None else send.data_ptr(),
                0 if receive is None else receive.data_ptr(),
                (send, receive),
                priority,
            )
        else:
            handle = round_.submit(self._session, Identity(name, tag), send, receive, priority)
        self._rounds.append(handle)

    def _copy_back(self, target: torch.Tensor, memory: torch.Tensor) -> None:
        if memory.data_ptr() != target.data_ptr():
            self._after.append(lambda: target.detach().copy_(memory))

    def _disagreed(self) -> None:
        self._group.begin_era(self._sequence)

    def _finish(self) -> None:
        for action in self._after:
            action()


class _Round:
    """What every call of one kind on so many elements of one type has in common."""

    def __init__(self, kind: str, words: tuple[str, str], form: WireForm, **options: Any) -> None:
        self._kind = kind
        # The call as messages show it, and what must agree across ranks as part of a name.
        self.label, self.name = words
        self._form = form
        self._options = options
        self.spec = _native.Round(kind, form.shape, form.dtype, **options)
        # What is left to do here: PREMUL_SUM's factor, and averages of integers.
        self.premultiplies = False
        self.divides = False

    def submit(
        self,
        session: Session,
        identity: Identity,
        send: torch.Tensor | None,
        receive: torch.Tensor | None,
        priority: int,
    ) -> Handle:
        """Submits it on the memory of a device."""
        options = self._options | {"priority": priority}
        return submit(session, self._kind, identity, self._form, send, receive, **options)


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


def _words(kind: str, dtype: torch.dtype, count: int, detail: str) -> tuple[str, str]:
    """A call as messages show it, and what must agree across ranks as part of a name."""
    name = str(dtype).removeprefix("torch.")
    return f"{kind}({name} [{count}], {detail})", f"{kind}.{name}.{count}.{detail}"


def _flat(form: WireForm) -> WireForm:
    return WireForm((math.prod(form.shape),), form.dtype)
