"""Horovod's allreduce: alone and in groups, into new tensors and in place."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from sumpter._calls import collective as kinds
from sumpter._calls.refusals import Checking, begin_each, numbered
from sumpter._core.compression.choice import BY_SETTING, Choice
from sumpter._core.handles import AnyHandle, GroupHandle
from sumpter._core.process_sets import ProcessSet, global_process_set
from sumpter._core.reduction import Adasum, ReduceOp, Reduction, choose_op
from sumpter._errors import UnsupportedError
from sumpter.torch.collectives.adasum import ENDINGS, adasum_async
from sumpter.torch.collectives.reduction import reduce_async
from sumpter.torch.compression import Compression, CompressionLike, choose
from sumpter.torch.tensors import check_tensor

# Of a call's name, by which the other ranks know what they wait for.
_KIND = kinds.ALL_REDUCE
# Of a group of which Adasum makes one call.
_GROUP = "grouped_allreduce"

# What backward() returns: one for each argument of forward(), None for what has none.
Gradients = tuple[torch.Tensor | None, ...]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: CompressionLike = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the reduction of `tensor` over all ranks: their average unless `op` says otherwise.

    Gradients flow through it. `average` is the old spelling of `op`.
    """
    with _checking(op, name, process_set):
        chosen, choice = choose_op(op, average), choose(compression)
        packed, context = choice.compressor.compress(check_tensor(tensor))
        reduction = _reduction(chosen, prescale_factor, postscale_factor, choice)
    if torch.is_grad_enabled() and packed.requires_grad:
        reduced = _AllReduce.apply(packed, _KIND, name, reduction, process_set)
    else:
        reduced = _reduce(_KIND, packed, None, name, reduction, process_set).synchronize()
    return choice.compressor.decompress(reduced, context)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Starts an allreduce into a new tensor."""
    with _checking(op, name, process_set):
        reduction = _reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return _reduce(_KIND, tensor, None, name, reduction, process_set)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces `tensor` over all ranks in place."""
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).synchronize()


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Starts an allreduce in place."""
    with _checking(op, name, process_set):
        reduction = _reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return _reduce(_KIND, tensor, tensor, name, reduction, process_set)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: CompressionLike = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Returns the reductions of several tensors, which travel together. Gradients flow through."""
    with _checking_group(tensors, op, name, process_set):
        chosen, choice = choose_op(op, average), choose(compression)
        reduction = _reduction(chosen, prescale_factor, postscale_factor, choice)
        packed = [choice.compressor.compress(check_tensor(tensor)) for tensor in tensors]
    inputs = [tensor for tensor, _ in packed]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        reduced = _GroupedAllReduce.apply(name, reduction, process_set, *inputs)
    else:
        reduced = _reduce_group(inputs, False, name, reduction, process_set).synchronize()
    pairs = zip(reduced, packed, strict=True)
    return [choice.compressor.decompress(tensor, context) for tensor, (_, context) in pairs]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> GroupHandle:
    """Starts allreduces into new tensors."""
    with _checking_group(tensors, op, name, process_set):
        reduction = _reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return _reduce_group(tensors, False, name, reduction, process_set)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors in place."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).synchronize()


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> GroupHandle:
    """Starts allreduces in place."""
    with _checking_group(tensors, op, name, process_set):
        reduction = _reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return _reduce_group(tensors, True, name, reduction, process_set)


def _checking(op: ReduceOp | None, name: str | None, process_set: ProcessSet) -> Checking:
    endings = ENDINGS if op is Adasum else None
    return Checking(_KIND, name, process_set, endings=endings)


def _checking_group(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None,
    name: str | None,
    process_set: ProcessSet,
) -> Checking:
    if op is Adasum:
        return Checking(_GROUP, name, process_set, endings=ENDINGS)
    return Checking(_KIND, name, process_set, lambda: numbered(len(tensors)))


def _reduction(
    op: ReduceOp, prescale: float, postscale: float, choice: Choice = BY_SETTING
) -> Reduction:
    # Of a compressor, the tensor has been through it.
    codec = choice.codec
    if op is Adasum and codec:
        raise UnsupportedError(
            f"op=Adasum sends tensors as they are, not by codec {codec}: use Compression.fp16 or "
            "Compression.none"
        )
    return Reduction(op, prescale, postscale, compression=Choice(codec))


def _reduce(
    kind: str,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    reduction: Reduction,
    process_set: ProcessSet,
) -> AnyHandle:
    if reduction.op is Adasum:
        outputs = None if output is None else [output]
        group = adasum_async(kind, [tensor], outputs, name, reduction, process_set)
        return GroupHandle([group], lambda results: results[0][0])
    return reduce_async(kind, tensor, output, name, reduction, process_set=process_set)


def _reduce_group(
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    name: str | None,
    reduction: Reduction,
    process_set: ProcessSet,
) -> GroupHandle:
    if reduction.op is Adasum:
        outputs = tensors if in_place else None
        return adasum_async(_GROUP, tensors, outputs, name, reduction, process_set)

    def begin(tensor: torch.Tensor, own: str | None) -> AnyHandle:
        return _reduce(_KIND, tensor, tensor if in_place else None, own, reduction, process_set)

    return GroupHandle(begin_each(_KIND, name, process_set, tensors, begin))


def of_backward(name: str | None) -> str | None:
    """The name of what an operation's gradient needs."""
    return None if name is None else f"{name}.backward"


def average_gradient(
    kind: str, gradient: torch.Tensor, name: str | None, process_set: ProcessSet
) -> torch.Tensor:
    """The average of an operation's gradient over all ranks, through which gradients flow."""
    return _AllReduce.apply(gradient, kind, of_backward(name), Reduction(), process_set)


class _AllReduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradient.

    So is the gradient of that, for sums and averages. Of other reductions, which are not linear,
    there is no second derivative.
    """

    @staticmethod
    def forward(ctx, tensor, kind, name, reduction, process_set):
        ctx.kind, ctx.name, ctx.reduction, ctx.process_set = kind, name, reduction, process_set
        return _reduce(kind, tensor, None, name, reduction, process_set).synchronize()

    @staticmethod
    def backward(ctx, gradient):
        return _derivative(ctx, _reduce_gradient)(ctx, gradient)


def _reduce_gradient(ctx: Any, gradient: torch.Tensor) -> Gradients:
    name = of_backward(ctx.name)
    reduced = _AllReduce.apply(gradient, ctx.kind, name, ctx.reduction, ctx.process_set)
    return reduced, None, None, None, None


class _GroupedAllReduce(torch.autograd.Function):
    """As `_AllReduce`, for each tensor."""

    @staticmethod
    def forward(ctx, name, reduction, process_set, *tensors):
        ctx.name, ctx.reduction, ctx.process_set = name, reduction, process_set
        return tuple(_reduce_group(tensors, False, name, reduction, process_set).synchronize())

    @staticmethod
    def backward(ctx, *gradients):
        return _derivative(ctx, _reduce_gradients)(ctx, *gradients)


def _reduce_gradients(ctx: Any, *gradients: torch.Tensor) -> Gradients:
    name = of_backward(ctx.name)
    reduced = _GroupedAllReduce.apply(name, ctx.reduction, ctx.process_set, *gradients)
    return None, None, None, *reduced


def _derivative(ctx: Any, backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """What computes gradients: with gradients of their own, or an error for those."""
    return backward if ctx.reduction.is_linear else once_differentiable(backward)
