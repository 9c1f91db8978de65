"""Sumpter for TensorFlow: reductions and broadcasts of tensors, eagerly and within tf.function.

    import sumpter.tensorflow as st

    st.init()
    st.broadcast_variables(model.variables, root_rank=0)
    with st.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = loss_of(model)
    gradients = tape.gradient(loss, model.trainable_variables)   # the average over all ranks

Each rank is a process of its own.
"""

# ruff: noqa: E402
from sumpter._packages import need

need("tensorflow", "sumpter.tensorflow")

from sumpter._core.membership import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from sumpter._core.reduction import Average, Max, Min, Product, ReduceOp, Sum
from sumpter._errors import (
    MismatchError,
    NotInitializedError,
    PeerLostError,
    SumpterError,
    UnsupportedError,
)
from sumpter.tensorflow.ops import allreduce, broadcast, grouped_allreduce, init, push_pull
from sumpter.tensorflow.training import DistributedGradientTape, broadcast_variables

__all__ = [
    "Average",
    "DistributedGradientTape",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "Product",
    "ReduceOp",
    "Sum",
    "SumpterError",
    "UnsupportedError",
    "allreduce",
    "broadcast",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "shutdown",
    "size",
]
