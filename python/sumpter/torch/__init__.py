"""Sumpter for PyTorch, in the words of Horovod and of BytePS.

    import sumpter.torch as hvd      # or: as bps

A script for either trains with this import in place of its own. For DistributedDataParallel use
`torch.distributed.init_process_group("sumpter")` instead, which needs no import at all.
"""

# ruff: noqa: E402
from sumpter._packages import need

need("torch", "sumpter.torch")

from sumpter._build import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from sumpter._core.handles import (
    ChainedHandle,
    GroupHandle,
    Handle,
    poll,
    synchronize,
)
from sumpter._core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    process_set_ids_and_ranks,
    remove_process_set,
)
from sumpter._core.reduction import Adasum, Average, Max, Min, Product, ReduceOp, Sum
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
from sumpter.torch import elastic
from sumpter.torch.c10d.ddp_hook import compression_hook, ddp_hook
from sumpter.torch.c10d.options import GroupOptions
from sumpter.torch.c10d.registration import register as _register_backend
from sumpter.torch.c10d.server_optimizer import server_optimizer
from sumpter.torch.collectives.allreduces import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from sumpter.torch.collectives.broadcasts import (
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from sumpter.torch.collectives.exchange import (
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
from sumpter.torch.compression import Compression
from sumpter.torch.device_places import install as _find_device_groups
from sumpter.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from sumpter.torch.joining import (
    cross_rank,
    cross_size,
    get_pushpull_speed,
    init,
    is_initialized,
    join,
    local_rank,
    local_size,
    rank,
    record_samples,
    resume,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
    suspend,
)
from sumpter.torch.lion import Lion
from sumpter.torch.local_sgd import DiLoCo, LocalSGD
from sumpter.torch.ops import (
    byteps_push_pull,
    byteps_torch_set_num_grads,
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_group_sync_inplace,
    push_pull_inplace,
)
from sumpter.torch.optimizer import DistributedOptimizer
from sumpter.torch.sync_batch_norm import SyncBatchNorm

# What Horovod scripts catch when a peer is lost.
HorovodInternalError = SumpterError

__all__ = [
    "Adasum",
    "AuthError",
    "Average",
    "ChainedHandle",
    "ClosedError",
    "Compression",
    "ConfigError",
    "DeadlineError",
    "DiLoCo",
    "DistributedOptimizer",
    "DuplicateNameError",
    "GroupHandle",
    "GroupOptions",
    "Handle",
    "HorovodInternalError",
    "Lion",
    "LocalSGD",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "StartError",
    "Sum",
    "SumpterError",
    "SyncBatchNorm",
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
    "byteps_torch_set_num_grads",
    "ccl_built",
    "compression_hook",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_hook",
    "declare",
    "elastic",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
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
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "process_set_ids_and_ranks",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "record_samples",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "resume",
    "rocm_built",
    "server_optimizer",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "suspend",
    "synchronize",
]

# A checkout has no entry point by which torch could find the backend.
_register_backend()
_find_device_groups()
