"""Files of lab/records, as tables need them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sumpter._failure import Failure

ROOT = Path(__file__).resolve().parents[4]
RECORDS = ROOT / "lab" / "records"


@dataclass(frozen=True)
class Record:
    """One file, and what a page calls its rows."""

    file: Path
    label: str = ""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of a CSV file, or the only list of objects of a JSON document."""
        if self.file.suffix == ".csv":
            with self.file.open(newline="") as stream:
                return [
                    {name: _value(text) for name, text in row.items()}
                    for row in csv.DictReader(stream)
                ]
        document = self.document
        if isinstance(document, list):
            return document
        lists = [value for value in document.values() if _is_rows(value)]
        if len(lists) != 1:
            raise Failure(f"{self.file}: {len(lists)} fields are lists of rows, not one")
        return lists[0]

    @cached_property
    def document(self) -> Any:
        """What a JSON file holds."""
        return json.loads(self.file.read_text())


def records(words: list[str], folder: Path = RECORDS) -> Iterator[Record]:
    """The files that a marker names, in the order of their names for a pattern."""
    label = ""
    named: list[tuple[str, str]] = []
    for word in words:
        if word.endswith((".csv", ".json")):
            named.append((word, ""))
        elif named:
            named[-1] = (named[-1][0], word)
        else:
            raise Failure(f"expected a file of lab/records first, got {word!r}")
    for pattern, label in named:
        files = sorted(folder.glob(pattern))
        if not files:
            raise Failure(f"lab/records has no file {pattern}")
        yield from (Record(file, label) for file in files)


def rows_of(found: Iterable[Record]) -> list[dict[str, Any]]:
    """The rows of several files, one after another."""
    return [row for record in found for row in record.rows]


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _value(text: str) -> Any:
    """A cell of CSV as what it was: lists and objects are JSON."""
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
