"""BytePS' collective: push_pull in its forms."""

import torch

from sumpter.torch.compression import Compression, Compressor
from sumpter.torch.handles import TensorHandle
from sumpter.torch.reduction import Average, Reduction, Sum, reduce_async


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: type[Compressor] = Compression.none,
) -> torch.Tensor:
    """Returns the average of `tensor` over all ranks, or its sum. Gradients flow through it.

    Averages of integers are rounded down. `version` is accepted for compatibility; Sumpter
    counts rounds itself.
    """
    packed, context = compression.compress(tensor)
    reduction = _reduction(average)
    if torch.is_grad_enabled() and packed.requires_grad:
        reduced = _PushPull.apply(packed, name, reduction, priority)
    else:
        reduced = reduce_async("push_pull", packed, None, name, reduction, priority).synchronize()
    return compression.decompress(reduced, context)


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> TensorHandle:
    """Starts a push_pull into a new tensor."""
    return reduce_async("push_pull", tensor, None, name, _reduction(average), priority)


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> torch.Tensor:
    """Replaces `tensor` by its average, or sum, over all ranks."""
    return push_pull_async_inplace(tensor, average, name, version, priority).synchronize()


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> TensorHandle:
    """Starts a push_pull in place."""
    return reduce_async("push_pull", tensor, tensor, name, _reduction(average), priority)


byteps_push_pull = push_pull_async_inplace


def declare(name: str) -> int:
    """Does nothing: tensors are declared, in one order for all ranks, when first used."""
    return 0


def _reduction(average: bool) -> Reduction:
    return Reduction(Average if average else Sum, rounding="floor")


class _PushPull(torch.autograd.Function):
    """The gradient of a push_pull is the push_pull of the gradient."""

    @staticmethod
    def forward(ctx, tensor, name, reduction, priority):
        ctx.name, ctx.reduction, ctx.priority = name, reduction, priority
        return reduce_async("push_pull", tensor, None, name, reduction, priority).synchronize()

    @staticmethod
    def backward(ctx, gradient):
        name = None if ctx.name is None else f"{ctx.name}.backward"
        handle = reduce_async("push_pull", gradient, None, name, ctx.reduction, ctx.priority)
        return handle.synchronize(), None, None, None
