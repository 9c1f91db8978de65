"""Horovod's collectives: allreduce, broadcast, allgather and barrier."""

import torch

from sumpter import _front, _session
from sumpter.torch.compression import Compression, Compressor
from sumpter.torch.handles import Identity, TensorHandle, identify, submit
from sumpter.torch.reduction import Average, ReduceOp, Reduction, Sum, reduce_async
from sumpter.torch.tensors import check_carried, moved_form, readable, writable


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Returns the reduction of `tensor` over all ranks: their average unless `op` says otherwise.

    Gradients flow through it. `average` is the old spelling of `op`.
    """
    chosen = choose_op(op, average)
    packed, context = compression.compress(tensor)
    reduction = Reduction(chosen, prescale_factor, postscale_factor)
    if torch.is_grad_enabled() and packed.requires_grad:
        reduced = _AllReduce.apply(packed, name, reduction)
    else:
        reduced = reduce_async("allreduce", packed, None, name, reduction).synchronize()
    return compression.decompress(reduced, context)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TensorHandle:
    """Starts an allreduce into a new tensor."""
    reduction = Reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return reduce_async("allreduce", tensor, None, name, reduction)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces `tensor` over all ranks in place."""
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor
    ).synchronize()


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> TensorHandle:
    """Starts an allreduce in place."""
    reduction = Reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return reduce_async("allreduce", tensor, tensor, name, reduction)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Returns rank `root_rank`'s tensor. Gradients flow back to the root, averaged."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _Broadcast.apply(tensor, root_rank, name)
    return broadcast_async(tensor, root_rank, name).synchronize()


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> TensorHandle:
    """Starts a broadcast into a new tensor."""
    check_carried(tensor)
    return broadcast_async_(readable(tensor).clone(), root_rank, name)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Overwrites `tensor` with rank `root_rank`'s."""
    return broadcast_async_(tensor, root_rank, name).synchronize()


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | Identity | None = None
) -> TensorHandle:
    """Starts a broadcast in place."""
    session = _session.current()
    _front.check_root(session, root_rank)
    check_carried(tensor)
    is_root = session.rank == root_rank
    memory = readable(tensor) if is_root else writable(tensor)
    identity = name
    if not isinstance(identity, Identity):
        identity = identify(session, "broadcast", name, tensor, f"root {root_rank}")
    native = submit(
        session,
        "broadcast",
        identity,
        moved_form(tensor),
        memory if is_root else None,
        memory,
        root=root_rank,
    )

    def finish() -> torch.Tensor:
        target = tensor.detach()
        if not is_root and target.stride() != memory.stride():
            target.copy_(memory)
        return tensor

    return TensorHandle(native, finish)


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Returns the ranks' tensors joined along the first dimension, in which they may differ.

    Gradients flow through it.
    """
    check_carried(tensor)
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _AllGather.apply(tensor, name)
    return torch.cat(gather_pieces(tensor, name))


def gather_pieces(tensor: torch.Tensor, name: str | None) -> list[torch.Tensor]:
    """Every rank's tensor; they may differ in the first dimension only."""
    session = _session.current()
    lengths = torch.zeros(session.world_size, dtype=torch.int64)
    lengths[session.rank] = tensor.shape[0]
    sizes_name = None if name is None else f"{name}.lengths"
    reduce_async("allgather", lengths, lengths, sizes_name, Reduction(Sum)).synchronize()
    pieces, handles = [], []
    for root, length in enumerate(lengths.tolist()):
        piece = readable(tensor).clone() if root == session.rank else None
        if piece is None:
            piece = torch.empty((length, *tensor.shape[1:]), dtype=tensor.dtype)
        piece_name = None if name is None else f"{name}.{root}.{length}"
        pieces.append(piece)
        identity = identify(session, "allgather", piece_name, piece, f"root {root}")
        handles.append(broadcast_async_(piece, root, identity))
    for handle in handles:
        handle.synchronize()
    return pieces


def barrier() -> None:
    """Returns when every rank has called it."""
    _front.barrier()


def choose_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The reduction that `op` or its old spelling `average` asks for."""
    if op is not None and average is not None:
        raise ValueError("give either op or average, not both: op=Average means average=True")
    if op is not None:
        return ReduceOp(op)
    return Sum if average is False else Average


class _AllReduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradient."""

    @staticmethod
    def forward(ctx, tensor, name, reduction):
        ctx.name, ctx.reduction = name, reduction
        return reduce_async("allreduce", tensor, None, name, reduction).synchronize()

    @staticmethod
    def backward(ctx, gradient):
        name = None if ctx.name is None else f"{ctx.name}.backward"
        handle = reduce_async("allreduce", gradient, None, name, ctx.reduction)
        return handle.synchronize(), None, None


class _Broadcast(torch.autograd.Function):
    """The gradient of a broadcast arrives at the root, averaged; other ranks get zero."""

    @staticmethod
    def forward(ctx, tensor, root_rank, name):
        ctx.root_rank, ctx.name = root_rank, name
        return broadcast_async(tensor, root_rank, name).synchronize()

    @staticmethod
    def backward(ctx, gradient):
        name = None if ctx.name is None else f"{ctx.name}.backward"
        reduced = reduce_async("allreduce", gradient, None, name, Reduction()).synchronize()
        if _front.rank() != ctx.root_rank:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None


class _AllGather(torch.autograd.Function):
    """The gradient of an allgather is this rank's piece of the averaged gradient."""

    @staticmethod
    def forward(ctx, tensor, name):
        pieces = gather_pieces(tensor, name)
        rank = _front.rank()
        ctx.start = sum(len(piece) for piece in pieces[:rank])
        ctx.length, ctx.name = len(pieces[rank]), name
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, gradient):
        name = None if ctx.name is None else f"{ctx.name}.{len(gradient)}.backward"
        reduced = reduce_async("allreduce", gradient, None, name, Reduction()).synchronize()
        return reduced.narrow(0, ctx.start, ctx.length), None
