"""Sumpter for PyTorch, in the words of Horovod and of BytePS.

    import sumpter.torch as hvd      # or: as bps

A script for either trains with this import in place of its own. For DistributedDataParallel use
`torch.distributed.init_process_group("sumpter")` instead, which needs no import at all.
"""

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
from sumpter.torch.exchange import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
from sumpter.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from sumpter.torch.handles import GroupHandle, StagedHandle, TensorHandle, poll, synchronize
from sumpter.torch.ops import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from sumpter.torch.optimizer import DistributedOptimizer
from sumpter.torch.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    process_set_ids_and_ranks,
    remove_process_set,
)
from sumpter.torch.push_pull import (
    byteps_push_pull,
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from sumpter.torch.reduction import Average, Max, Min, Product, ReduceOp, Sum
from sumpter.torch.registration import register as _register_backend
from sumpter.torch.session import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    record_samples,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from sumpter.torch.sync_batch_norm import SyncBatchNorm

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
    "GroupHandle",
    "HorovodInternalError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "StagedHandle",
    "StartError",
    "Sum",
    "SumpterError",
    "SyncBatchNorm",
    "TensorHandle",
    "UnsupportedError",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
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
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "process_set_ids_and_ranks",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "record_samples",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

# A checkout has no entry point by which torch could find the backend.
_register_backend()
