"""Sumpter for JAX: collectives on arrays and pytrees, inside and outside of jit.

    import sumpter.jax as sj

    sj.init()
    gradients = sj.all_reduce(gradients)            # the average over all ranks
    optimizer = sj.distribute(optax.adam(1e-3))     # does so in each update

Each rank is a process of its own, with JAX on its own devices. Collectives have gradients, and work
under `scan`, `vmap` and the other transformations.
"""

# ruff: noqa: E402
from sumpter._packages import need

need("jax", "sumpter.jax")

from sumpter.jax.version import check as _check_version

_check_version()

from sumpter._core.compression.codecs import Compression
from sumpter._core.membership import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    record_samples,
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
from sumpter._core.reduction import Average, Max, Min, Product, ReduceOp, Sum
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
from sumpter.jax.joining import init
from sumpter.jax.ops import all_gather, all_reduce, barrier, broadcast, reduce_scatter
from sumpter.jax.training import broadcast_parameters, distribute

__all__ = [
    "AuthError",
    "Average",
    "ClosedError",
    "Compression",
    "ConfigError",
    "DeadlineError",
    "DuplicateNameError",
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
    "UnsupportedError",
    "add_process_set",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "distribute",
    "global_process_set",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "process_set_ids_and_ranks",
    "rank",
    "record_samples",
    "reduce_scatter",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
