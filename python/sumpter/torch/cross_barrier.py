"""BytePS' cross_barrier: `import sumpter.torch.cross_barrier as bps`."""

from collections.abc import Iterable

import torch

from sumpter._core.handles import poll, synchronize
from sumpter.torch.compression import Compression, CompressionLike
from sumpter.torch.functions import broadcast_optimizer_state, broadcast_parameters
from sumpter.torch.joining import init, local_rank, local_size, rank, shutdown, size
from sumpter.torch.optimizer import DistributedOptimizer

__all__ = [
    "Compression",
    "CrossBarrier",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]


def CrossBarrier(  # noqa: N802 - the name that BytePS scripts use
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: CompressionLike = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> torch.optim.Optimizer:
    """DistributedOptimizer(..., overlap_forward=True) for the parameters of `model`.

    The step number `num_steps` and those after it wait for all updates, so that the parameters
    are up to date when training ends. Names are the model's unless they are given. ValueError if
    the optimizer has parameters that the model has not.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}: it must be 1 or more")
    names = {parameter: name for name, parameter in model.named_parameters()}
    strangers = [p for g in optimizer.param_groups for p in g["params"] if p not in names]
    if strangers:
        raise ValueError(f"{len(strangers)} of the optimizer's parameters are not the model's")
    if named_parameters is None:
        named_parameters = [(name, parameter) for parameter, name in names.items()]
    wrapped = DistributedOptimizer(
        optimizer, named_parameters, compression, backward_passes_per_step, overlap_forward=True
    )
    wrapped.finish_from(num_steps)
    return wrapped
