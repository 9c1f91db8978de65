"""The codecs of `sumpter bench sum`: encoding, decoding and adding in cache, beside a copy."""

from __future__ import annotations

from statistics import median

from sumpter_lab import _native
from sumpter_lab.local.kernels import WrongResult
from sumpter_lab.scaffold.results.table import Row

# Each codec with what it may lose of the norm of gradients, as the page of the decision bounds it.
CODECS = {
    "fp16": 0.001,
    "bf16": 0.01,
    "int8": 0.02,
    "int8:scale=shared": 0.02,
    "fp8": 0.1,
    "fp8:format=e5m2": 0.2,
    "onebit": 1.0,
    "topk:k=0.01": 1.0,
    "randomk:k=0.01": 1.0,
    "dithering:bits=4": 1.0,
    "dithering:bits=4,partition=natural": 1.0,
    "dithering:bits=8,normalize=l2": 1.0,
    "powersgd:rank=4": 1.001,
}

# Codecs of users' choice: an error that is as large as this would be no code of the elements.
_MOST_LOST = 100.0

_FLOAT32_BYTES = 4


def measure(codecs: list[str], size: int, rounds: int) -> list[Row]:
    """A row for each codec, of elements of float32 of so many bytes."""
    return [_measure(codec, size, rounds) for codec in codecs]


def _measure(codec: str, size: int, rounds: int) -> Row:
    elements = max(size // _FLOAT32_BYTES, 1)
    encoded, lost, samples = _native.bench_codec(codec, elements=elements, rounds=rounds)
    if not lost <= CODECS.get(codec, _MOST_LOST):
        raise WrongResult(f"codec {codec} loses {lost:.3g} of the norm of what it encodes")
    elements_bytes = _FLOAT32_BYTES * elements
    seconds = [median(phase) for phase in zip(*samples, strict=True)]
    encode, feedback, decode, add, copy = (elements_bytes / s / 1e9 for s in seconds)
    return {
        "codec": codec,
        "bytes": elements_bytes,
        "encoded_bytes": encoded,
        "times_smaller": elements_bytes / encoded,
        "norm_lost": lost,
        "encode_gb_per_s": encode,
        "encode_feedback_gb_per_s": feedback,
        "decode_gb_per_s": decode,
        "decode_add_gb_per_s": add,
        "copied_gb_per_s": copy,
        "encode_of_copy": encode / copy,
        "decode_add_of_copy": add / copy,
        "correct": True,
    }
