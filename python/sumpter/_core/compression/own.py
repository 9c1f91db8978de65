"""Codecs of users, written in Python: slow, and good for trying out a codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from sumpter import _native
from sumpter._core import membership
from sumpter._errors import ConfigError


class OwnCodec(Protocol):
    """A codec of blocks of up to 1,024 elements; only a tensor's last block has fewer.

    It must be a function of its arguments and of what it is given: no clock, no random numbers that
    differ between processes, no state. Error feedback, momentum and NaNs are done for it. Arrays
    are used again for the next block: keep no reference to them.
    """

    def block_bytes(self, elements: int) -> int:
        """The bytes of a block of so many elements, from 1 to 8,192."""

    def encode(self, elements: np.ndarray, code: np.ndarray) -> object:
        """Writes the code of `elements`, of float32, into `code`, bytes that are 0 before."""

    def decode(self, code: np.ndarray, elements: np.ndarray) -> object:
        """Writes what `code` means into `elements`, of float32 that are 0 before.

        An exception is for bytes that encode() does not write.
        """


def register_codec(name: str, make: Callable[..., OwnCodec]) -> None:
    """Adds a codec, to be chosen as `compression="NAME"` or `"NAME:key=value"` by any front.

    `make` returns it and gets the arguments as texts, by their names: it raises an exception for
    one that it does not take. Call this before init(), on every rank and every server: in a module
    that the setting `codecs` names. Sums of such a codec come back as they are. ConfigError for a
    name that is taken, and after init().
    """
    if membership.peek() is not None:
        raise ConfigError(
            f"codec {name} is registered after init(): register it before, or name its module in "
            "the setting codecs"
        )
    _native.register_codec(name, make)
