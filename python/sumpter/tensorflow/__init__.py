"""Sumpter for TensorFlow: collectives on tensors, eagerly and within tf.function.

    import sumpter.tensorflow as st

    st.init()
    st.broadcast_variables(model.variables, root_rank=0)
    with st.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = loss_of(model)
    gradients = tape.gradient(loss, model.trainable_variables)   # the average over all ranks

Each rank is a process of its own. For `model.fit` see sumpter.keras.
"""

# ruff: noqa: E402
from sumpter._packages import need

need("tensorflow", "sumpter.tensorflow")

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
from sumpter._calls.joining import (
    barrier,
    get_pushpull_speed,
    init,
    join,
    resume,
    suspend,
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
from sumpter.keras.optimizer import (
    PartialDistributedOptimizer,
)
from sumpter.tensorflow import elastic
from sumpter.tensorflow.functions import (
    allgather_object,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from sumpter.tensorflow.graphs import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
)
from sumpter.tensorflow.ops import (
    allreduce,
    broadcast,
    grouped_allreduce,
    grouped_broadcast,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    push_pull,
    rank_op,
    size_op,
)
from sumpter.tensorflow.pieces import (
    allgather,
    alltoall,
    grouped_allgather,
    grouped_reducescatter,
    reducescatter,
)
from sumpter.tensorflow.sync_batch_norm import (
    SyncBatchNormalization,
)
from sumpter.tensorflow.training import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "SumpterError",
    "SyncBatchNormalization",
    "UnsupportedError",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "get_pushpull_speed",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "push_pull",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "resume",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "suspend",
]
