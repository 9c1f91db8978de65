"""Numbers in sentences, and texts of others."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: float, noun: str, plural: str = "") -> str:
    """`1 worker`, `2 workers`, `3 processes`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """A text of another machine's, with marks for what a terminal would take for a command, and
    for what turns the direction of writing."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def listed(noun: str, names: Sequence[object]) -> str:
    """`rank 1`, `ranks 1 and 2`, `ranks 1, 2 and 5`."""
    *first, last = map(str, names)
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"
