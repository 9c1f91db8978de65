"""The codecs of the core by their names and arguments, and the compressors of fronts."""

from __future__ import annotations

import functools
from typing import Any

from sumpter import _native
from sumpter._errors import UnsupportedError

# One of several codecs, or none: the core chooses it for each tensor.
AUTO = "auto"

# Works on matrices as a whole, so a front has to do it.
LOW_RANK = "powersgd"


class Compressor:
    """Turns a framework's array into what travels, and back."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what decompress() needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The received tensor in its original element type."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class Codec:
    """A codec, or `none`. Called with arguments it gives another: `Compression.topk(k=0.01)`.

    Arguments are those of the codec, and `ef` (error feedback), `momentum`, `nan` and `two_way`.
    ConfigError names one that the codec does not take, or what is wrong with its value.
    """

    def __init__(self, name: str, **arguments: object) -> None:
        self.name = name
        self._arguments = arguments

    def __call__(self, **arguments: object) -> Codec:
        """The codec with these arguments."""
        codec = Codec(self.name, **{**self._arguments, **arguments})
        canonical(codec.text)
        return codec

    @property
    def text(self) -> str:
        """As settings have it: `topk:k=0.01`."""
        arguments = ",".join(f"{key}={_word(value)}" for key, value in self._arguments.items())
        return f"{self.name}:{arguments}" if arguments else self.name

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The tensor as it is, of `none`; other codecs are the core's, which encodes on the way."""
        if self.name != "none":
            raise UnsupportedError(
                f"{self.name} encodes tensors on their way, not before: pass it as compression= of "
                "the operation, or to a DistributedOptimizer"
            )
        return tensor, None

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """The tensor as it is."""
        return tensor

    def __repr__(self) -> str:
        return f"Compression.{self.text}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codec) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class Compression:
    """The codecs to choose from; `none` leaves it to the setting `compression`.

    `auto` compresses each tensor by the codec that pays for it, or not at all: of bf16 and int8, or
    of those listed, `Compression.auto(codecs=["fp8", Compression.topk(k=0.01)])`.
    """

    none = Codec("none")
    fp16 = Codec("fp16")
    bf16 = Codec("bf16")
    int8 = Codec("int8")
    fp8 = Codec("fp8")
    onebit = Codec("onebit")
    topk = Codec("topk")
    randomk = Codec("randomk")
    dithering = Codec("dithering")
    powersgd = Codec(LOW_RANK)
    auto = Codec(AUTO)


@functools.lru_cache(maxsize=256)
def canonical(text: str) -> str:
    """A codec's text in canonical form; ConfigError says what is wrong with it."""
    return _native.codec(text)


def forgetful(codec: str) -> str:
    """The codec without what it keeps from round to round: for a tensor that has no name.

    Raises ConfigError for one with momentum.
    """
    return _native.codec(codec, keeps=False) if codec else codec


def going_on(codec: str, draws: tuple[int, int] | None) -> str:
    """The codec whose random numbers go on from an earlier job, if it draws any."""
    return _native.codec(codec, draws=draws) if codec and draws is not None else codec


def has_momentum(codec: str) -> bool:
    """Whether a codec in canonical form has momentum of its own."""
    return any(pair.startswith("momentum=") for pair in codec.partition(":")[2].split(","))


def is_low_rank(codec: str) -> bool:
    """Whether a codec works on matrices as a whole."""
    return codec.partition(":")[0] == LOW_RANK


def _word(value: object) -> str:
    """A value as the core reads it."""
    if isinstance(value, list | tuple):
        return "+".join(one.text if isinstance(one, Codec) else str(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
