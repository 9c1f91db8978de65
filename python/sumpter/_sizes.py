"""Sizes in bytes as people write them: `1GiB`, `100MB`, `65536`."""

from __future__ import annotations

import re

from sumpter._failure import UsageError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_size(text: str, option: str = "") -> int:
    """Bytes from `1GiB`, `100MB`, `1.5GiB` or a plain number; complaints name the option."""
    what = f"{option}: '{text}'".removeprefix(": ")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"{what} is not a size; write for example 65536, 100MB or 1GiB")
    size = round(float(match[1]) * _UNITS[match[2].upper()])
    if size < 1:
        raise UsageError(f"{what} is too small; a size is at least one byte")
    return size
