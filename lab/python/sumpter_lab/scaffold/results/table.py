"""Tables of rows on a terminal: what a column shows, and how lines look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its head, its width and the text of a row."""

    head: str
    width: int
    text: Callable[[Row], str]


def figure(name: str, template: str) -> Callable[[Row], str]:
    """A row's figure in the template, or a dash where it was not measured."""

    def text(row: Row) -> str:
        value = row.get(name)
        return "-" if value is None else template.format(value)

    return text


def head_line(columns: Sequence[Column]) -> str:
    """The heads, each above its column."""
    return " ".join(column.head.rjust(column.width) for column in columns)


def row_line(columns: Sequence[Column], row: Row) -> str:
    """One row, its figures under their heads."""
    return " ".join(column.text(row).rjust(column.width) for column in columns)
