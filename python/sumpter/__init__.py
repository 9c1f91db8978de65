"""Sumpter: sums of gradients, carried by spare CPU machines.

    import sumpter

    sumpter.init()
    total = sumpter.push_pull(array, average=False, name="total")

Works on NumPy arrays and on any DLPack array in host memory. For PyTorch see `sumpter.torch`
(the Horovod and BytePS interfaces) and `torch.distributed` with `backend="sumpter"`.
"""

from sumpter._core.compression.codecs import Compression
from sumpter._core.compression.memory import compression_state, load_compression_state
from sumpter._core.compression.own import register_codec
from sumpter._core.handles import Handle
from sumpter._core.membership import (
    barrier,
    is_initialized,
    local_rank,
    local_size,
    rank,
    record_samples,
    shutdown,
    size,
)
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
from sumpter._front import (
    allgather_object,
    broadcast,
    broadcast_object,
    init,
    poll,
    push_pull,
    push_pull_async,
    synchronize,
)
from sumpter._native import __version__
from sumpter.tuning import tune

__all__ = [
    "AuthError",
    "ClosedError",
    "Compression",
    "ConfigError",
    "DeadlineError",
    "DuplicateNameError",
    "Handle",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "StartError",
    "SumpterError",
    "UnsupportedError",
    "__version__",
    "allgather_object",
    "barrier",
    "broadcast",
    "broadcast_object",
    "compression_state",
    "init",
    "is_initialized",
    "load_compression_state",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "rank",
    "record_samples",
    "register_codec",
    "shutdown",
    "size",
    "synchronize",
    "tune",
]
