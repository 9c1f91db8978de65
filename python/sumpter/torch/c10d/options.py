"""What the creator of a process group may say of it: `pg_options` of torch.distributed."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from sumpter import _native
from sumpter._core.compression.choice import Limits, choose
from sumpter._core.compression.codecs import NoneCompressor, forgetful, is_low_rank
from sumpter._errors import ConfigError
from sumpter.torch.compression import Compression, CompressionLike

_log = logging.getLogger("sumpter")


@dataclass(frozen=True)
class GroupOptions:
    """Options of one process group, for `pg_options` of init_process_group() and new_group().

    By a codec of `compression` floating-point tensors of at least `compression_min_bytes` travel
    that are added in an all_reduce; what is left out is as the settings of these names say. The
    tensors of torch.distributed have no names, so a codec keeps nothing from one call to the next:
    without error feedback. A `compression_hook` keeps it. The same on all ranks.
    """

    compression: CompressionLike = Compression.none
    compression_min_bytes: int | None = None


def limits_of(worker: _native.Worker, options: GroupOptions | None) -> Limits:
    """Which tensors of a group travel by which codec.

    ConfigError for a codec that cannot do without what it keeps, or without parameters.
    """
    limits, options = Limits.of(worker), options or GroupOptions()
    choice = choose(options.compression)
    if choice.compressor is not NoneCompressor:
        raise ConfigError(
            f"GroupOptions takes codecs of Compression, not {options.compression!r}: casts are "
            "hooks of DistributedDataParallel"
        )
    codec = limits.codec if choice.codec is None else choice.codec
    least = options.compression_min_bytes
    if is_low_rank(codec):
        raise ConfigError(
            f"codec {codec} sums gradients of matrices, which a process group does not know: use "
            "torch's powerSGD_hook, or sumpter.torch.DistributedOptimizer"
        )
    kept = forgetful(codec)
    if kept != codec:
        _log.info(
            "compression %s of torch.distributed is without error feedback, since its tensors have "
            "no names: register sumpter.torch.compression_hook(%r) on the model for it",
            *(codec, codec),
        )
    return Limits(kept, limits.min_bytes if least is None else least)


def read(given: Any) -> GroupOptions | None:
    """The options that torch passes on; those of other backends are not ours to judge."""
    return given if isinstance(given, GroupOptions) else None
