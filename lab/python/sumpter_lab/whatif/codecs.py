"""The codecs that what-if predicts: how lists write them, and how fast they are."""

from __future__ import annotations

from typing import NamedTuple

from sumpter import _native

# What `--advise` tries, those first that lose least of a gradient (docs/measurements, codecs in
# cache): of codecs that gain about as much it names the first.
TRIED = (
    "fp16",
    "bf16",
    "int8",
    "fp8",
    "dithering:bits=4",
    "powersgd:rank=4",
    "topk:k=0.01",
    "onebit",
)


class CodecRate(NamedTuple):
    """Bytes of float32 that one core encodes, decodes, or decodes and adds in a second."""

    encode: float
    decode: float
    decode_add: float


def measured(codec: str) -> CodecRate:
    """How fast a codec is on this machine, measured once in a process.

    Raises ConfigError, which names the codec or the argument, for what is none.
    """
    encode, decode, decode_add, _ = _native.codec_rates(codec)
    return CodecRate(encode, decode, decode_add)


def joined(parts: list[str]) -> list[str]:
    """The entries of a list that was divided at commas, which also stand between the arguments of
    a codec: `topk:k=0.01`, `ef=false` are one."""
    entries: list[str] = []
    for part in parts:
        is_argument = "=" in part.partition(":")[0]
        if is_argument and entries and ":" in entries[-1]:
            entries[-1] += f",{part}"
        else:
            entries.append(part)
    return entries
