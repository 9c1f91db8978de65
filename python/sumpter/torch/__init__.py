"""Sumpter for PyTorch, in the words of Horovod and of BytePS.

    import sumpter.torch as hvd      # or: as bps

A script for either trains with this import in place of its own. For DistributedDataParallel use
`torch.distributed.init_process_group("sumpter")` instead, which needs no import at all.
"""

import torch as _torch

from sumpter._errors import (
    AuthError,
    ClosedError,
    ConfigError,
    DeadlineError,
    DuplicateNameError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    StartError,
    SumpterError,
    UnsupportedError,
)
from sumpter.torch.compression import Compression
from sumpter.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from sumpter.torch.handles import TensorHandle, poll, synchronize
from sumpter.torch.ops import (
    allgather,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from sumpter.torch.optimizer import DistributedOptimizer
from sumpter.torch.push_pull import (
    byteps_push_pull,
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from sumpter.torch.reduction import Average, Max, Min, Product, ReduceOp, Sum
from sumpter.torch.session import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    record_samples,
    shutdown,
    size,
)

# What Horovod scripts catch when a peer is lost.
HorovodInternalError = SumpterError

__all__ = [
    "AuthError",
    "Average",
    "ClosedError",
    "Compression",
    "ConfigError",
    "DeadlineError",
    "DistributedOptimizer",
    "DuplicateNameError",
    "HorovodInternalError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "Product",
    "ReduceOp",
    "StartError",
    "Sum",
    "SumpterError",
    "TensorHandle",
    "UnsupportedError",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "cross_rank",
    "cross_size",
    "declare",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "record_samples",
    "shutdown",
    "size",
    "synchronize",
]


def _register_backend() -> None:
    """Registers the c10d backend where torch can have it: a checkout has no entry point."""
    from sumpter.torch import backend

    try:
        backend.check_torch_version(_torch.__version__)
    except ImportError:
        return
    backend.register()


_register_backend()
