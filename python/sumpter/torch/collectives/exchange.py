"""Horovod's collectives that move pieces: allgather, alltoall and reducescatter.

Where pieces differ in size, ranks first tell each other the sizes; how is in _core/pieces.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sumpter._calls import collective as kinds
from sumpter._calls.refusals import Checking, begin_each, numbered
from sumpter._core import membership
from sumpter._core.handles import ChainedHandle, GroupHandle, Handle
from sumpter._core.names import Identity, agree, identify
from sumpter._core.pieces import check_splits, describe_row, exchange_counts, padded, rows_form
from sumpter._core.process_sets import ProcessSet, global_process_set, members
from sumpter._core.reduction import Adasum, Average, ReduceOp, Reduction, Sum
from sumpter._core.session import Session
from sumpter._errors import UnsupportedError
from sumpter.torch.collectives.allreduces import average_gradient, of_backward
from sumpter.torch.collectives.reduction import scale
from sumpter.torch.compression import Compression, CompressionLike, Compressor, choose
from sumpter.torch.devices import stream_context
from sumpter.torch.tensors import (
    check_carried,
    check_tensor,
    dtype_name,
    is_differentiated,
    readable,
    reduced_form,
    start_round,
)


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the ranks' tensors joined along the first dimension, in which they may differ.

    Gradients flow through it.
    """
    with Checking(kinds.ALL_GATHER, name, process_set):
        check_carried(tensor)
    tensor = _with_rows(tensor)
    if is_differentiated(tensor):
        return _AllGather.apply(tensor, name, process_set)
    return allgather_async(tensor, name, process_set).synchronize()


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> ChainedHandle:
    """Starts an allgather."""
    return gather_async(tensor, name, process_set, torch.cat)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Returns the allgather of each tensor. Gradients flow through it."""
    if any(is_differentiated(tensor) for tensor in tensors):
        return [allgather(t, _numbered(name, i), process_set) for i, t in enumerate(tensors)]
    return grouped_allgather_async(tensors, name, process_set).synchronize()


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> GroupHandle:
    """Starts an allgather of each tensor."""

    def begin(tensor: torch.Tensor, own: str | None) -> ChainedHandle:
        return allgather_async(tensor, own, process_set)

    return GroupHandle(begin_each(kinds.ALL_GATHER, name, process_set, tensors, begin))


def gather_async(
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    join: Callable[[list[torch.Tensor]], Any],
) -> ChainedHandle:
    """Starts gathering the pieces of all ranks; `join` makes the result of their list."""
    session = membership.current()
    with Checking(kinds.ALL_GATHER, name, process_set):
        ranks = members(process_set)
        check_carried(tensor)
    tensor = readable(_with_rows(tensor))
    identity = _identify(session, kinds.ALL_GATHER, name, tensor, process_set)
    pieces: list[torch.Tensor] = []

    def move(counts: list[list[list[int]]]) -> list[Handle[Any]]:
        handles = []
        for root, (length,) in zip(ranks, counts[0], strict=True):
            own = tensor if root == session.rank else None
            shape = (length, *tensor.shape[1:])
            piece = _Piece(session, identity, own, shape, tensor)
            pieces.append(piece.rows)
            handles += piece.move(root, ranks)
        return handles

    counts = exchange_counts(session, identity, [tensor.shape[0]], _row(tensor), process_set)
    context = stream_context(tensor)
    return ChainedHandle([counts], [move], lambda _: join(pieces), context, identity.own())


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends `splits[i]` rows of `tensor` to rank i; returns the rows received, by rank.

    Without `splits` every rank gets equally many rows. With them, how many rows came from each
    rank is returned as well. Gradients flow through it.
    """
    if is_differentiated(tensor):
        rows, received = _AllToAll.apply(tensor, splits, name, process_set)
    else:
        rows, received = _alltoall_async(tensor, splits, name, process_set).synchronize()
    return rows if splits is None else (rows, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> ChainedHandle:
    """Starts an alltoall; its result is what alltoall() returns."""
    return _alltoall_async(tensor, splits, name, process_set, bare=splits is None)


def _alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
    bare: bool = False,
) -> ChainedHandle:
    session = membership.current()
    with Checking(kinds.EXCHANGE_ROWS, name, process_set):
        ranks = members(process_set)
        check_carried(tensor)
        counts = _listed(tensor, splits, len(ranks))
    tensor = readable(tensor)
    kind = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32
    identity = _identify(session, kinds.EXCHANGE_ROWS, name, tensor, process_set)
    own = process_set.rank()
    received = torch.zeros(len(ranks), dtype=kind, device="cpu")
    pieces: list[torch.Tensor] = []

    def move(tables: list[list[list[int]]]) -> list[Handle[Any]]:
        (table,) = tables
        received.copy_(torch.tensor([row[own] for row in table], device="cpu"))
        sent = tensor.split(counts)
        handles = []
        for other, rank in enumerate(ranks):
            shape = (table[other][own], *tensor.shape[1:])
            if other == own:
                pieces.append(sent[own].clone())
                continue
            outgoing = _Piece(session, identity, sent[other], tuple(sent[other].shape), tensor)
            incoming = _Piece(session, identity, None, shape, tensor)
            pieces.append(incoming.rows)
            both = sorted((rank, session.rank))
            handles += outgoing.move(session.rank, both, f"to.{rank}")
            handles += incoming.move(rank, both, f"to.{session.rank}")
        return handles

    def finish(_: object) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        rows = torch.cat(pieces)
        return rows if bare else (rows, received)

    begun = exchange_counts(session, identity, counts, _row(tensor), process_set)
    return ChainedHandle([begun], [move], finish, stream_context(tensor), identity.own())


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: CompressionLike = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces `tensor` over all ranks and returns this rank's share of the rows.

    The first ranks get one row more where the rows cannot be shared out evenly. Gradients flow
    through it.
    """
    with Checking(kinds.REDUCE_SCATTER, name, process_set):
        compressor = _compressor(compression)
        packed, context = compressor.compress(check_tensor(tensor))
    reduction = Reduction(op, prescale_factor, postscale_factor)
    if torch.is_grad_enabled() and packed.requires_grad:
        rows = _ReduceScatter.apply(packed, name, reduction, process_set)
    else:
        rows = _reducescatter_async(packed, name, reduction, process_set).synchronize()
    return compressor.decompress(rows, context)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> ChainedHandle:
    """Starts a reducescatter."""
    reduction = Reduction(op, prescale_factor, postscale_factor)
    return _reducescatter_async(tensor, name, reduction, process_set)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: CompressionLike = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Returns the reducescatter of each tensor. Gradients flow through it."""
    factors = (prescale_factor, postscale_factor)
    if any(is_differentiated(tensor) for tensor in tensors):
        return [
            reducescatter(t, _numbered(name, i), compression, op, process_set, *factors)
            for i, t in enumerate(tensors)
        ]
    with Checking(kinds.REDUCE_SCATTER, name, process_set, lambda: numbered(len(tensors))):
        compressor = _compressor(compression)
        packed = [compressor.compress(check_tensor(tensor)) for tensor in tensors]
    handle = grouped_reducescatter_async(
        [tensor for tensor, _ in packed], name, op, process_set, *factors
    )
    pairs = zip(handle.synchronize(), packed, strict=True)
    return [compressor.decompress(rows, context) for rows, (_, context) in pairs]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> GroupHandle:
    """Starts a reducescatter of each tensor."""
    reduction = Reduction(op, prescale_factor, postscale_factor)

    def begin(tensor: torch.Tensor, own: str | None) -> ChainedHandle:
        return _reducescatter_async(tensor, own, reduction, process_set)

    return GroupHandle(begin_each(kinds.REDUCE_SCATTER, name, process_set, tensors, begin))


def _compressor(compression: CompressionLike) -> type[Compressor]:
    """What is done to the tensors of a reducescatter, which has no codecs."""
    choice = choose(compression)
    if choice.codec:
        raise UnsupportedError(
            f"reducescatter sends tensors as they are, not by codec {choice.codec}: use "
            "Compression.fp16 or Compression.none, or allreduce"
        )
    return choice.compressor


def _reducescatter_async(
    tensor: torch.Tensor, name: str | None, reduction: Reduction, process_set: ProcessSet
) -> ChainedHandle:
    session = membership.current()
    with Checking(kinds.REDUCE_SCATTER, name, process_set):
        ranks = members(process_set)
        check_carried(tensor)
        if tensor.dim() == 0:
            raise ValueError("reducescatter shares out rows: a tensor needs at least one dimension")
        if reduction.op is Adasum:
            raise UnsupportedError("reducescatter has no Adasum: use op=Average or op=Sum")
        source = readable(scale(tensor.detach(), reduction.prescale))
        # What cannot be reduced is refused here and not where `share` runs.
        reduced_form(source, reduction.op.wire_name)
    identity = identify(
        session,
        kinds.REDUCE_SCATTER,
        name,
        dtype_name(tensor),
        tensor.shape,
        reduction.op.value,
        process_set,
    )
    averages = reduction.op is Average

    def share(_: object) -> list[Handle[Any]]:
        handles = []
        for root, rows in zip(ranks, source.tensor_split(len(ranks)), strict=True):
            receive = torch.empty_like(rows) if root == session.rank else None
            part = identity.part(root)
            declared = session.declare(
                part.name,
                "reduce_scatter",
                *reduced_form(rows, reduction.op.wire_name),
                reduction.op.wire_name,
                root=root,
                average=averages and rows.dtype.is_floating_point,
                ranks=ranks,
            )
            round_ = start_round(declared, rows, receive, tag=part.tag)
            part.note(round_)
            handles.append(Handle(round_, lambda receive=receive: receive))
        return handles

    def finish(shares: list[torch.Tensor | None]) -> torch.Tensor:
        result = shares[ranks.index(session.rank)]
        if averages and not result.dtype.is_floating_point:
            result = torch.div(result, len(ranks), rounding_mode=reduction.rounding)
        return scale(result, reduction.postscale)

    begin = agree(session, identity, ranks)
    return ChainedHandle([begin], [share], finish, stream_context(source), identity.own())


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: ReduceOp,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts the sum, or average, of sparse tensors; the function that it returns waits for it."""
    parts = dict.fromkeys((".indices", ".values"))
    with Checking(kinds.ALL_GATHER, name, process_set, parts):
        if op not in (Sum, Average):
            raise ValueError("sparse tensors have sums and averages only")
        if check_tensor(tensor).layout != torch.sparse_coo:
            raise ValueError(f"the tensor's layout is {tensor.layout}, not sparse (COO)")
        # Not coalesced: equal indices add up in any case.
        indices, values = tensor.detach()._indices().t().contiguous(), tensor.detach()._values()
        check_carried(values)
    count = process_set.size()
    handles = [
        allgather_async(part, f"{name}{ending}", process_set)
        for ending, part in zip(parts, (indices, values), strict=True)
    ]

    def join(gathered: list[torch.Tensor]) -> torch.Tensor:
        where, what = gathered
        return torch.sparse_coo_tensor(
            where.t(), what / count if op is Average else what, tensor.shape
        )

    return GroupHandle(handles, join).synchronize


class _Piece:
    """Rows on their way from one rank to others, in memory that may be longer.

    Elements are those of `like`, on its device.
    """

    def __init__(
        self,
        session: Session,
        identity: Identity,
        own: torch.Tensor | None,
        shape: tuple[int, ...],
        like: torch.Tensor,
    ) -> None:
        self._session = session
        self._identity = identity
        self._own = own
        if own is None:
            self._bytes = like.element_size() * torch.Size(shape).numel()
            # Whole elements, or the view of the beginning would not exist.
            memory = like.new_empty(padded(self._bytes), dtype=torch.uint8)
            self._memory: torch.Tensor | None = memory
            self.rows = memory[: self._bytes].view(like.dtype).reshape(shape)
        else:
            self._bytes = own.numel() * own.element_size()
            self._memory = None
            self.rows = own

    def move(self, root: int, ranks: list[int], detail: str = "") -> list[Handle[Any]]:
        """Starts the transfer from `root` to the other ranks; nothing for no bytes."""
        if not self._bytes:
            return []
        capacity = padded(self._bytes)
        if self._own is not None:
            flat = self._own.contiguous().reshape(-1).view(torch.uint8)
            self._memory = flat
            if len(flat) < capacity:
                self._memory = flat.new_zeros(capacity)
                self._memory[: len(flat)] = flat
        memory = self._memory
        suffix = f"{root}.{detail}.{capacity}" if detail else f"{root}.{capacity}"
        part = self._identity.part(suffix)
        declared = self._session.declare(
            part.name, "broadcast", (capacity,), "uint8", root=root, ranks=ranks
        )
        send = memory if self._own is not None else None
        round_ = start_round(declared, send, memory, tag=part.tag)
        part.note(round_)
        return [Handle(round_, lambda: self.rows)]


def _identify(
    session: Session, kind: str, name: str | None, tensor: torch.Tensor, process_set: ProcessSet
) -> Identity:
    """What must agree across ranks."""
    form = rows_form(name, dtype_name(tensor), tensor.shape[1:])
    return identify(session, kind, name, *form, process_set)


def _row(tensor: torch.Tensor) -> str:
    return describe_row(dtype_name(tensor), tensor.shape[1:])


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def _numbered(name: str | None, index: int) -> str | None:
    return None if name is None else f"{name}.{index}"


def _listed(
    tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None, ranks: int
) -> list[int]:
    """How many rows go to each rank."""
    if tensor.dim() == 0:
        raise ValueError("alltoall sends rows: a tensor needs at least one dimension")
    if isinstance(splits, torch.Tensor):
        if splits.dim() != 1 or splits.dtype.is_floating_point:
            raise ValueError("splits must be a list of whole numbers, one for each rank")
        splits = splits.tolist()
    return check_splits(tensor.shape[0], splits, ranks)


class _AllGather(torch.autograd.Function):
    """The gradient of an allgather is this rank's piece of the averaged gradient."""

    @staticmethod
    def forward(ctx, tensor, name, process_set):
        ctx.name, ctx.process_set = name, process_set
        pieces = gather_async(tensor, name, process_set, list).synchronize()
        own = process_set.rank()
        ctx.start, ctx.length = sum(len(piece) for piece in pieces[:own]), len(pieces[own])
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, gradient):
        reduced = average_gradient(kinds.ALL_GATHER, gradient, ctx.name, ctx.process_set)
        return reduced.narrow(0, ctx.start, ctx.length), None, None


class _AllToAll(torch.autograd.Function):
    """The gradient of an alltoall goes back the way the rows came."""

    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        rows, received = _alltoall_async(tensor, splits, name, process_set).synchronize()
        ctx.received, ctx.name, ctx.process_set = received, name, process_set
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx, gradient, _):
        name, splits = of_backward(ctx.name), ctx.received
        rows, _ = _AllToAll.apply(gradient, splits, name, ctx.process_set)
        return rows, None, None, None


class _ReduceScatter(torch.autograd.Function):
    """The gradient of an averaging reducescatter is the allgather of the gradients; that of a
    sum is as many times larger as there are ranks. Horovod defines it so: as its allgather's
    gradient is an average, one undoes the other. The factors of the reduction count as well. Other
    reductions have no gradient."""

    @staticmethod
    def forward(ctx, tensor, name, reduction, process_set):
        ctx.name, ctx.reduction, ctx.process_set = name, reduction, process_set
        return _reducescatter_async(tensor, name, reduction, process_set).synchronize()

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.reduction.is_linear:
            raise UnsupportedError(
                f"a reducescatter with the operator {ctx.reduction.op.value} has no gradient: use "
                "sum or average, or give it tensors that need none"
            )
        factor = ctx.reduction.prescale * ctx.reduction.postscale
        if ctx.reduction.op is Sum:
            factor *= ctx.process_set.size()
        gradient = scale(gradient, factor)
        rows = _AllGather.apply(gradient, of_backward(ctx.name), ctx.process_set)
        return rows, None, None, None
