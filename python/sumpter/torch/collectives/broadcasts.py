"""Horovod's broadcasts and its barrier."""

from contextlib import nullcontext

import torch

from sumpter._calls import collective as kinds
from sumpter._calls.refusals import Checking
from sumpter._core import membership
from sumpter._core.handles import Handle
from sumpter._core.names import Identity, identify
from sumpter._core.process_sets import ProcessSet, global_process_set, label, members
from sumpter.torch.collectives.allreduces import average_gradient
from sumpter.torch.tensors import (
    check_carried,
    dtype_name,
    is_differentiated,
    moved_form,
    readable,
    start_round,
    writable,
)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns rank `root_rank`'s tensor. Gradients flow back to the root, averaged.

    The root is named by its rank in the job, in a process set as well.
    """
    if is_differentiated(tensor):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return broadcast_async(tensor, root_rank, name, process_set).synchronize()


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Starts a broadcast into a new tensor."""
    with _checking(name, process_set):
        check_carried(tensor)
    return broadcast_async_(readable(tensor).clone(), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrites `tensor` with rank `root_rank`'s."""
    return broadcast_async_(tensor, root_rank, name, process_set).synchronize()


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | Identity | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Starts a broadcast in place."""
    session = membership.current()
    # Of a part of a call that has begun the other ranks learn by that call.
    checking = nullcontext() if isinstance(name, Identity) else _checking(name, process_set)
    with checking:
        membership.check_root(session, root_rank)
        ranks = members(process_set)
        if root_rank not in ranks:
            raise ValueError(f"root_rank {root_rank} is not in {process_set}")
        check_carried(tensor)
    is_root = session.rank == root_rank
    memory = readable(tensor) if is_root else writable(tensor)
    identity = name
    if not isinstance(identity, Identity):
        detail = f"root {root_rank}"
        identity = identify(
            session, kinds.BROADCAST, name, dtype_name(tensor), tensor.shape, detail, process_set
        )
    declared = session.declare(
        identity.name,
        "broadcast",
        *moved_form(tensor),
        root=root_rank,
        ranks=None if process_set is global_process_set else ranks,
    )
    round_ = start_round(declared, memory if is_root else None, memory, tag=identity.tag)
    identity.note(round_)

    def finish() -> torch.Tensor:
        target = tensor.detach()
        # Also of a view that shows its memory negated or conjugated, which is no other in strides.
        if not is_root and target.data_ptr() != memory.data_ptr():
            target.copy_(memory)
        return tensor

    return Handle(round_, finish, identity.own())


def _checking(name: str | None, process_set: ProcessSet) -> Checking:
    return Checking(kinds.BROADCAST, name, process_set)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it."""
    if process_set is global_process_set:
        membership.barrier()
        return
    session, among = membership.current(), label(process_set)
    session.barrier(f"barrier{among}", members(process_set)).wait()


class _Broadcast(torch.autograd.Function):
    """The gradient of a broadcast arrives at the root, averaged; other ranks get zero."""

    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.root_rank, ctx.name, ctx.process_set = root_rank, name, process_set
        return broadcast_async(tensor, root_rank, name, process_set).synchronize()

    @staticmethod
    def backward(ctx, gradient):
        reduced = average_gradient(kinds.BROADCAST, gradient, ctx.name, ctx.process_set)
        # Computed from it on all ranks, since all take part in the gradient of the gradient.
        is_hidden = reduced.new_full((), membership.rank() != ctx.root_rank, dtype=torch.bool)
        return reduced.masked_fill(is_hidden, 0), None, None, None
