"""By which codecs the gradients of arrays travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sumpter._core import membership
from sumpter._core.compression.choice import Choice, Limits, choose, gradient_codecs
from sumpter._core.compression.codecs import Codec, NoneCompressor, is_low_rank
from sumpter._errors import ConfigError, UnsupportedError

# What a caller may give: a codec, its text, BytePS' dictionary, or none.
CompressionLike = Codec | str | Mapping[str, Any] | type[NoneCompressor]


def choice_for(compression: CompressionLike, user: str) -> Choice:
    """What `user` was told of compression; raises for casts and for what only torch's front has."""
    choice = choose(compression)
    if choice.compressor is not NoneCompressor:
        raise UnsupportedError(
            f"{user} takes codecs of Compression, not {compression!r}: cast what it is given"
        )
    if is_low_rank(choice.codec or ""):
        raise ConfigError(
            f"codec {choice.codec} needs the DistributedOptimizer of sumpter.torch: choose another "
            f"one for {user}"
        )
    return choice


def codecs_of_gradients(
    choice: Choice, forms: Mapping[str, tuple[Sequence[int], str]]
) -> dict[str, str]:
    """The codecs of gradients, by their names; `forms` are shapes and element types."""
    limits = Limits.of(membership.current().worker)
    if is_low_rank(limits.codec):
        limits = limits._replace(codec="")
    if not limits.codec and choice.is_default:
        return dict.fromkeys(forms, "")
    return gradient_codecs(choice, limits, forms)
