"""How tensors travel in fewer bytes: what callers of fronts may choose, and which tensors it fits.

A codec and its arguments are a text to the core, which has the formats. Callers write the text, or
take a codec of `Compression` and give it arguments, or the dictionary of BytePS. What has methods
compress() and decompress() is none of these: a compressor of a front, which makes another tensor
of what is sent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sumpter import _native
from sumpter._core.compression.byteps import from_byteps
from sumpter._core.compression.codecs import (
    Codec,
    Compressor,
    NoneCompressor,
    canonical,
    forgetful,
    has_momentum,
    is_low_rank,
)
from sumpter._core.tensor import ITEM_BYTES
from sumpter._errors import ConfigError

_log = logging.getLogger("sumpter")

# The element types that have codecs.
FLOATS = ("float32", "float64", "float16", "bfloat16")

# Never compresses, whatever the setting says.
OFF = "off"


class Choice(NamedTuple):
    """What a caller has chosen."""

    # Canonical; empty for none, and None for what the setting says.
    codec: str | None = None
    # What a front does to a tensor before and after.
    compressor: type[Compressor] = NoneCompressor

    @property
    def is_off(self) -> bool:
        """Whether tensors are never compressed."""
        return self.codec == "" and self.compressor is NoneCompressor

    @property
    def is_default(self) -> bool:
        """Whether the caller has chosen nothing."""
        return self.codec is None and self.compressor is NoneCompressor

    @property
    def word(self) -> str:
        """What ranks must agree about, as part of a name."""
        return "default" if self.codec is None else self.codec or self.compressor.__qualname__


# Of a caller who has said nothing, and of what is not a caller's own.
BY_SETTING = Choice()
UNCOMPRESSED = Choice("")


def choose(compression: object) -> Choice:
    """What an argument `compression` says: a codec, its text, a dictionary, or a compressor.

    Raises ConfigError for an unknown codec, or an argument that it does not take.
    """
    if isinstance(compression, Mapping):
        return Choice(from_byteps(compression))
    if isinstance(compression, Codec):
        compression = compression.text
    if compression is NoneCompressor or compression is None:
        return Choice()
    if isinstance(compression, str):
        if compression == "none":
            return Choice()
        return Choice("" if compression == OFF else canonical(compression))
    if hasattr(compression, "compress") and hasattr(compression, "decompress"):
        return Choice("", compression)
    raise ConfigError(
        f"compression is {compression!r}: give a codec of Compression, its text such as 'int8', "
        "a dictionary as BytePS has it, or what has compress() and decompress()"
    )


class Limits(NamedTuple):
    """What the settings say of all tensors."""

    codec: str
    min_bytes: int

    @classmethod
    def of(cls, worker: _native.Worker) -> Limits:
        return cls(worker.compression, worker.compression_min_bytes)

    def fits(self, shape: Sequence[int], dtype: str, least_dimensions: int = 0) -> bool:
        """Whether a tensor is worth compressing unless somebody asks for it."""
        return (
            dtype in FLOATS
            and len(shape) >= least_dimensions
            and math.prod(shape) * ITEM_BYTES[dtype] >= max(self.min_bytes, 1)
        )

    def codec_of(
        self, choice: Choice, shape: Sequence[int], dtype: str, sums: bool, named: bool
    ) -> str:
        """The codec of a single operation; empty for none.

        Without a choice, it is the setting's, for what `fits` and `sums`, unless that needs what an
        operation without a name does not keep.
        """
        codec = choice.codec
        if codec is None:
            codec = self.codec if sums and self.fits(shape, dtype) else ""
            if is_low_rank(codec) or (has_momentum(codec) and not named):
                return ""
        elif is_low_rank(codec):
            raise ConfigError(
                f"codec {codec} sums gradients of matrices by their factors: pass it to a "
                "DistributedOptimizer, or choose another one"
            )
        return codec if named else forgetful(codec)


def gradient_codecs(
    choice: Choice, limits: Limits, described: Mapping[str, tuple[Sequence[int], str]]
) -> dict[str, str]:
    """The codecs of gradients, by their names, of which shapes and element types are given.

    Those that are small or of fewer than two dimensions, such as of norms and biases, have none. It
    is logged which those are; as a warning if the codec has momentum, which they then lack.
    """
    codec = limits.codec if choice.codec is None else choice.codec
    if not codec:
        return dict.fromkeys(described, "")
    codecs = {
        name: codec if limits.fits(shape, dtype, 2) else ""
        for name, (shape, dtype) in described.items()
    }
    left = [name for name, own in codecs.items() if not own]
    if left:
        loses = has_momentum(codec)
        _log.log(
            logging.WARNING if loses else logging.INFO,
            "compression %s: %d of %d gradients are left as they are%s, being of one dimension or "
            "of fewer than %d bytes (compression_min_bytes): %s",
            *(codec, len(left), len(codecs), ", without the codec's momentum" if loses else ""),
            *(limits.min_bytes, _some(left)),
        )
    return codecs


def _some(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + rest
