"""Models of a cluster whose sizes are divided, so that they fit this machine and its links."""

from __future__ import annotations

from sumpter import _native
from sumpter._sizes import parse_size

# The least that settings of sizes take, and a multiple that each of them takes.
_GRAIN_BYTES = 4096
_SETTINGS = ("partition_bytes", "chunk_bytes", "credit_bytes", "compression_min_bytes")


def small(size_bytes: float, scale: float) -> int:
    """The size that stands for this one, as far as settings take it."""
    return max(1, round(size_bytes / scale / _GRAIN_BYTES)) * _GRAIN_BYTES


def scaled_settings(scale: float, given: dict[str, str]) -> dict[str, str]:
    """The settings that are sizes, divided like the tensors; unless given.

    The credit is that of a job that does not know its links.
    """
    defaults = {row["name"]: row["default"] for row in _native.settings()}
    defaults["credit_bytes"] = str(_native.default_credit(None))
    scaled = {name: str(small(parse_size(defaults[name]), scale)) for name in _SETTINGS}
    return {**scaled, **given}
