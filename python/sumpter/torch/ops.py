"""BytePS' collective, push_pull, in its forms, under the names of byteps.torch.ops."""

import torch

from sumpter._calls import collective as kinds
from sumpter._calls.refusals import Checking
from sumpter._core.compression.choice import BY_SETTING, Choice
from sumpter._core.handles import Handle, poll, synchronize
from sumpter._core.reduction import Average, Reduction, Sum
from sumpter.torch.collectives.reduction import reduce_async
from sumpter.torch.compression import Compression, CompressionLike, choose
from sumpter.torch.joining import (
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from sumpter.torch.tensors import check_tensor

__all__ = [
    "BytePSPushPull",
    "Compression",
    "byteps_push_pull",
    "byteps_torch_set_num_grads",
    "declare",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]

# Of a call's name, by which the other ranks know what they wait for.
_KIND = kinds.ALL_REDUCE


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: CompressionLike = Compression.none,
) -> torch.Tensor:
    """Returns the average of `tensor` over all ranks, or its sum. Gradients flow through it.

    Averages of integers are rounded down. `version` is accepted for compatibility; Sumpter
    counts rounds itself. Raises AssertionError without a name, as BytePS does.
    """
    if name is None:
        raise AssertionError("push_pull needs a name: pass name=..., the same on every rank")
    with Checking(_KIND, name):
        choice = choose(compression)
        packed, context = choice.compressor.compress(check_tensor(tensor))
    # The tensor has been through a compressor.
    coded = Choice(choice.codec)
    if torch.is_grad_enabled() and packed.requires_grad:
        reduced = BytePSPushPull.apply(packed, average, name, version, priority, coded)
    else:
        reduced = _start(packed, None, average, name, priority, coded).synchronize()
    return choice.compressor.decompress(reduced, context)


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle[torch.Tensor]:
    """Starts a push_pull into a new tensor; without a name it is matched by the order of calls."""
    return _start(tensor, None, average, name, priority)


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
) -> Handle[torch.Tensor]:
    """Starts a push_pull in place."""
    return _start(tensor, tensor, average, name, priority)


byteps_push_pull = push_pull_async_inplace


def push_pull_group_sync_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> tuple[Handle[torch.Tensor], int]:
    """Starts a push_pull in place, and counts, from 1, which of its group it is.

    A group has as many as byteps_torch_set_num_grads() said; the number of the last one says that
    it is time to wait for all.
    """
    return push_pull_async_inplace(tensor, average, name, version, priority), _group.add()


def byteps_torch_set_num_grads(num_grads: int) -> None:
    """Says how many push_pull_group_sync_inplace() make a group, and begins one."""
    if num_grads < 1:
        raise ValueError(f"num_grads is {num_grads}: a group has 1 or more")
    _group.begin(num_grads)


def declare(name: str) -> int:
    """Does nothing: tensors are declared, in one order for all ranks, when first used."""
    return 0


class BytePSPushPull(torch.autograd.Function):
    """The gradient of a push_pull is the push_pull of the gradient, to any order."""

    @staticmethod
    def forward(ctx, tensor, average, name, version, priority, compression=BY_SETTING):
        ctx.average, ctx.name, ctx.priority, ctx.compression = average, name, priority, compression
        return _start(tensor, None, average, name, priority, compression).synchronize()

    @staticmethod
    def backward(ctx, gradient):
        name = None if ctx.name is None else f"{ctx.name}.backward"
        reduced = BytePSPushPull.apply(
            gradient, ctx.average, name, 0, ctx.priority, ctx.compression
        )
        return reduced, None, None, None, None, None


class _Group:
    """Counts the members of one group after the other."""

    def __init__(self) -> None:
        self.begin(1)

    def begin(self, members: int) -> None:
        self._members, self._count = members, 0

    def add(self) -> int:
        count = self._count + 1
        self._count = count % self._members
        return count


_group = _Group()


def _start(
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    average: bool,
    name: str | None,
    priority: int,
    compression: Choice = BY_SETTING,
) -> Handle[torch.Tensor]:
    op = Average if average else Sum
    reduction = Reduction(op, rounding="floor", compression=compression)
    return reduce_async(_KIND, tensor, output, name, reduction, priority)
