"""What a report raises, apart from DocumentError for a file."""

from __future__ import annotations

from sumpter._errors import SumpterError


class ReportError(SumpterError, ValueError):
    """The page cannot be made of these files, or not be written."""
