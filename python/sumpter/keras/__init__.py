"""Sumpter for Keras 3, on TensorFlow and on JAX: `model.fit` with all ranks' gradients.

    import sumpter.keras as sk

    sk.init()
    optimizer = sk.DistributedOptimizer(keras.optimizers.Adam(1e-3 * sk.size()))
    model.compile(optimizer, loss, jit_compile=False)
    model.fit(data, callbacks=[sk.callbacks.BroadcastGlobalVariablesCallback(0)])

Which of the two Keras runs on is KERAS_BACKEND's choice. Where it is JAX, leave `jit_compile` out.
"""

# ruff: noqa: E402
from sumpter._packages import need

need("keras", "sumpter.keras")

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
from sumpter._calls.joining import barrier, init, join
from sumpter._calls.objects import broadcast_variables
from sumpter._core.compression.codecs import Compression
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
from sumpter._core.reduction import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from sumpter.keras import callbacks, elastic
from sumpter.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from sumpter.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    load_model,
    push_pull,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "push_pull",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
