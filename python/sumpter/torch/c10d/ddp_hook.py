"""The buckets of torch's DistributedDataParallel, in the order in which they are needed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sumpter._core.compression.codecs import NoneCompressor, is_low_rank
from sumpter._errors import ConfigError
from sumpter.torch.compression import CompressionLike, choose
from sumpter.torch.training.rates import LearningRates

if TYPE_CHECKING:
    from sumpter.torch.c10d.backend import SumpterBackend


def ddp_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that averages the buckets with the first layers first.

    `model.register_comm_hook(None, sumpter.torch.ddp_hook)`, or with the process group of the model
    in place of None. DDP fills its buckets in the order in which the first backward pass has
    completed the gradients, so those with higher numbers are needed earlier. ValueError if the
    group's backend is not "sumpter".
    """
    buffer = bucket.buffer()
    work = backend_of(group, buffer.device, "ddp_hook").average_bucket(buffer, bucket.index())
    return work.get_future().then(lambda done: done.value()[0])


def compression_hook(
    compression: CompressionLike, optimizer: torch.optim.Optimizer | None = None
) -> Callable[[dist.ProcessGroup | None, dist.GradBucket], torch.futures.Future[torch.Tensor]]:
    """A communication hook that averages the buckets by a codec, with error feedback.

    `model.register_comm_hook(None, sumpter.torch.compression_hook("int8"))`, or with the process
    group of the model in place of None. What the codec leaves out of a bucket is added to it in the
    next step; with the `optimizer` it is rescaled where the learning rate changes. Buckets of
    fewer than `compression_min_bytes` are averaged as they are. A hook is for one model. ValueError
    if the group's backend is not "sumpter"; ConfigError for an unknown codec or argument.
    """
    choice = choose(compression)
    if choice.compressor is not NoneCompressor or not choice.codec:
        raise ConfigError(
            f"compression_hook takes a codec of Compression or its text, not {compression!r}: "
            "torch's own hooks cast"
        )
    if is_low_rank(choice.codec):
        raise ConfigError(f"codec {choice.codec} needs matrices: register torch's powerSGD_hook")
    rates = None if optimizer is None else LearningRates(optimizer)
    buckets = _Buckets(choice.codec, rates)

    def hook(
        group: dist.ProcessGroup | None, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        return buckets.average(group, bucket)

    return hook


class _Buckets:
    """Knows a bucket by its parameters, since DDP fills its buckets anew after the first step."""

    def __init__(self, codec: str, rates: LearningRates | None) -> None:
        self._codec = codec
        self._rates = rates
        self._number: int | None = None
        self._names: dict[tuple[int, ...], str] = {}

    def average(
        self, group: dist.ProcessGroup | None, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        backend = backend_of(group, buffer.device, "compression_hook")
        if not backend.is_worth_compressing(buffer):
            return ddp_hook(group, bucket)
        if self._number is None:
            self._number = backend.count("compression_hook")
        key = tuple(map(id, parameters))
        name = self._names.setdefault(key, f"bucket {self._number}.{len(self._names)}")
        rescale = 1.0 if self._rates is None else self._rates.rescale(parameters[0])
        work = backend.average_compressed(buffer, name, self._codec, bucket.index(), rescale)
        return work.get_future().then(lambda done: done.value()[0])


def backend_of(
    group: dist.ProcessGroup | None, device: torch.device, caller: str
) -> "SumpterBackend":
    """The backend of a group for a device; ValueError, for the caller, if it is another."""
    from sumpter.torch.c10d.backend import SumpterBackend  # which needs a newer torch than the rest

    group = dist.group.WORLD if group is None else group
    backend = group._get_backend(device)
    if not isinstance(backend, SumpterBackend):
        raise ValueError(
            f"the process group's backend for {device.type} is {backend.name()}: {caller} "
            'needs init_process_group("sumpter")'
        )
    return backend
