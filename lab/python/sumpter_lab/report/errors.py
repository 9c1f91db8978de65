"""What a report raises: one sentence that names file, field and what was expected."""

from __future__ import annotations

from sumpter._errors import SumpterError

_SHOWN_CHARACTERS = 60


class ReportError(SumpterError, ValueError):
    """A file is not what a report can be made of, or the page cannot be made or written."""


def refuse(place: object, expected: str, value: object) -> ReportError:
    """The complaint about a value at a place: a file and a field."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return ReportError(f"{place}: expected {expected}, got {shown}")
