"""Sumpter for Apache MXNet 1.9.1, in the words of Horovod and of BytePS.

    import sumpter.mxnet as hvd      # or: as bps

    hvd.init()
    parameters = net.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)
    trainer = hvd.DistributedTrainer(parameters, "sgd", {"learning_rate": 0.1})

Each rank is a process of its own. A collective returns when it is done, which is when MXNet has
computed what it is given and the other ranks have called it as well.
"""

# ruff: noqa: E402
from sumpter._packages import need

need("mxnet", "sumpter.mxnet")

from sumpter.mxnet import version as _version

_version.check()

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
from sumpter._core.compression.codecs import (
    Compression,
)
from sumpter._core.membership import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from sumpter._core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    process_set_ids_and_ranks,
    remove_process_set,
)
from sumpter._core.reduction import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)
from sumpter._errors import (
    MismatchError,
    NotInitializedError,
    PeerLostError,
    SumpterError,
    UnsupportedError,
)
from sumpter._joining import (
    get_pushpull_speed,
    suspend,
)
from sumpter.mxnet.functions import (
    allgather_object,
    broadcast_object,
    broadcast_parameters,
)
from sumpter.mxnet.ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    byteps_declare_tensor,
    byteps_push_pull,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    init,
    push_pull,
    reducescatter,
    resume,
)
from sumpter.mxnet.training import (
    DistributedOptimizer,
    DistributedTrainer,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "SumpterError",
    "UnsupportedError",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_ids_and_ranks",
    "push_pull",
    "rank",
    "reducescatter",
    "remove_process_set",
    "resume",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "suspend",
]
