"""Files with many rows that a bench writes: JSON that says what it is, and of which version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumpter import _json
from sumpter._errors import SumpterError

_SHOWN_CHARACTERS = 60


class DocumentError(SumpterError, ValueError):
    """A file cannot be read or written, or is not what it has to be: file, field and why."""


def refuse(place: object, expected: str, value: object) -> DocumentError:
    """The complaint about a value at a place: a file and a field."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return DocumentError(f"{place}: expected {expected}, got {shown}")


@dataclass(frozen=True)
class Document:
    """One kind of file."""

    format: str
    version: int
    rows: str  # the field that holds them, a list of objects
    command: str  # what writes it

    def write(self, path: Path, rows: Sequence[Any], /, **more: Any) -> None:
        """Writes rows, and whatever else there is to say. Raises DocumentError."""
        head: dict[str, Any] = {"format": self.format, "version": self.version}
        try:
            path.write_text(json.dumps({**head, **more, self.rows: rows}) + "\n")
        except OSError as error:
            raise DocumentError(f"cannot write {path}: {error.strerror}") from error

    def read(self, path: Path) -> list[dict[str, Any]]:
        """The rows of a file, with unchecked fields. Raises DocumentError."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise DocumentError(f"{path}: expected JSON, but this is no text in UTF-8") from None
        return self.rows_of(path, parse(path, text))

    def rows_of(self, path: Path, document: object) -> list[dict[str, Any]]:
        """The rows of what has been parsed. Raises DocumentError."""
        if not isinstance(document, dict) or document.get("format") != self.format:
            expected = f"expected '{self.format}', as `{self.command} --output` writes it"
            raise DocumentError(f"{path}: format: {expected}")
        version = document.get("version")
        if version != self.version:
            newer = isinstance(version, int) and version > self.version
            cause = ": a newer Sumpter wrote this file; update this one" if newer else ""
            expected = f"expected {self.version}, got {version!r}"
            raise DocumentError(f"{path}: version: {expected}{cause}")
        rows = document.get(self.rows)
        if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
            raise DocumentError(f"{path}: {self.rows}: expected a list of at least one object")
        return rows


def parse(path: Path, text: str) -> object:
    """The JSON of a file that a bench has written. Raises DocumentError."""
    try:
        return _json.parse(text, "a bench")
    except ValueError as error:
        raise DocumentError(f"{path}: {error}") from None


REPLAY = Document("sumpter-replay", 1, "cells", "sumpter bench replay")
REPRODUCE = Document("sumpter-reproduce", 1, "cases", "sumpter reproduce")
SCALE = Document("sumpter-bench-scale", 1, "rows", "sumpter bench scale")
TUNE = Document("sumpter-bench-tune", 1, "runs", "sumpter bench tune")
