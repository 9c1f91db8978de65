"""Codecs that tests register, as users would: a module for the setting `codecs`."""

from __future__ import annotations

import numpy as np

import sumpter


class Halves:
    """float16, as the codec fp16 has it; `fail` names a call that raises for a first element 13."""

    def __init__(self, fail: str = "") -> None:
        if fail not in ("", "encode", "decode"):
            raise ValueError(f"fail={fail}: give encode or decode")
        self._fail = fail

    def block_bytes(self, elements: int) -> int:
        return 2 * elements

    def encode(self, elements: np.ndarray, code: np.ndarray) -> None:
        if self._fail == "encode" and elements[0] == 13:
            raise ValueError("unlucky elements")
        code.view(np.float16)[:] = elements

    def decode(self, code: np.ndarray, elements: np.ndarray) -> None:
        elements[:] = code.view(np.float16)
        if self._fail == "decode" and elements[0] == 13:
            raise ValueError("unlucky code")


sumpter.register_codec("halves", Halves)
