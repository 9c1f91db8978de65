"""Compression as torch scripts choose it: codecs of the core, and casts before and after."""

from collections.abc import Mapping
from typing import Any

import torch

from sumpter._core.compression import choice, codecs
from sumpter._core.compression.choice import Choice
from sumpter._core.compression.codecs import Codec, Compressor, NoneCompressor

__all__ = [
    "Choice",
    "Compression",
    "CompressionLike",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "choose",
]


# A codec or its text, BytePS' dictionary, or a compressor.
CompressionLike = Codec | str | Mapping[str, Any] | type[Compressor]


class FP16Compressor(Compressor):
    """Sends floating-point tensors in half precision; others as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 2:
            return tensor.to(torch.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class _Half(Codec):
    """fp16, which scripts of Horovod and BytePS also call themselves."""

    compress = staticmethod(FP16Compressor.compress)
    decompress = staticmethod(FP16Compressor.decompress)


class Compression(codecs.Compression):
    """The codecs to choose from; `none` leaves it to the setting `compression`.

    A codec is called for one with arguments: `Compression.topk(k=0.01, momentum=0.9)`. `auto`
    compresses each tensor by the codec that pays for it, or not at all: of bf16 and int8, or of
    those listed, `Compression.auto(codecs=["fp8", Compression.topk(k=0.01)])`.
    """

    fp16 = _Half("fp16")


def choose(given: object) -> Choice:
    """What an argument `compression` says, as `sumpter._core.compression.choice` has it.

    Without arguments `fp16` is a cast, as in Horovod and BytePS: of every tensor and for every
    operation.
    """
    chosen = choice.choose(given)
    return Choice("", FP16Compressor) if chosen.codec == "fp16" else chosen
