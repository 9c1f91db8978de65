"""Sumpter for Keras 3 on TensorFlow: `model.fit` with all ranks' gradients.

    import sumpter.keras as sk

    sk.init()
    optimizer = sk.DistributedOptimizer(keras.optimizers.Adam(1e-3 * sk.size()))
    model.compile(optimizer, loss, jit_compile=False)
    model.fit(data, callbacks=[sk.callbacks.BroadcastGlobalVariablesCallback(0)])

The same as `sumpter.keras`, and Horovod's `horovod.tensorflow.keras`.
"""

# ruff: noqa: E402
from sumpter._packages import need

need("tensorflow", "sumpter.keras")
need("keras", "sumpter.keras")

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
from sumpter.tensorflow.functions import broadcast_variables
from sumpter.tensorflow.keras import callbacks, elastic
from sumpter.tensorflow.keras.optimizer import DistributedOptimizer
from sumpter.tensorflow.keras.values import (
    allgather,
    allreduce,
    broadcast,
    load_model,
    reducescatter,
)
from sumpter.tensorflow.ops import barrier, init

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "elastic",
    "global_process_set",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
