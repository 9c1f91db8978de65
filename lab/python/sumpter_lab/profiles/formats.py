"""Reads profiles of every known format."""

from __future__ import annotations

from pathlib import Path

from sumpter import profiles
from sumpter._errors import ProfileError
from sumpter.profiles import Profile, checks
from sumpter.profiles.file import read_text
from sumpter_lab.profiles import netai

FORMATS = ("sumpter", "netai")


def load(
    path: str | Path,
    format: str = "sumpter",
    *,
    iteration_s: float | None = None,
    batch_size: int | None = None,
) -> Profile:
    """Reads a profile.

    `format` is "sumpter" for the JSON of `sumpter.profiles` or "netai" for the log of gradients of
    the NetAI'20 scripts. Such a log says nothing of the whole iteration, so its time without
    communication must be given as `iteration_s`, in seconds, and `batch_size` may be; a Sumpter
    file has both. Raises ProfileError, which names the file, the field and what was expected.
    """
    if format not in FORMATS:
        raise checks.refuse("format", f"one of {', '.join(FORMATS)}", format)
    with checks.within(path, ": "):
        if format == "netai":
            if iteration_s is None:
                raise ProfileError("a NetAI log has no iteration time: give iteration_s")
            return netai.parse(read_text(path), Path(path).stem, iteration_s, batch_size)
        if iteration_s is not None or batch_size is not None:
            raise ProfileError("iteration_s and batch_size are in the file: do not give them")
    return profiles.load(path)
