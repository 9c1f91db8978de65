"""A table in Markdown, and how its figures are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sumpter_lab.tables.record import Record

NONE = "-"
# Cells of such a column are figures, and stand at its right end.
_FIGURE = re.compile(r"(?:[+-]?[\d.,]+(?: ?(?:%|[KMG]iB|MB|GB|B|s|ms|µs))?|-|)$")
_KIB = 1024


@dataclass(frozen=True)
class Table:
    """Heads of columns, and rows of as many cells."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table, without the columns of which nothing was measured."""
        columns = [
            (head, cells)
            for head, cells in zip(self.heads, zip(*self.rows, strict=True), strict=True)
            if set(cells) != {NONE}
        ]
        right = (all(_FIGURE.match(cell) for cell in cells) for _, cells in columns)
        lines = [
            _line(head for head, _ in columns),
            "|" + "|".join("---:" if figures else "---" for figures in right) + "|",
            *map(_line, zip(*(cells for _, cells in columns), strict=True)),
        ]
        return "".join(f"{line}\n" for line in lines)


Builder = Callable[[Sequence[Record]], Table]
BUILDERS: dict[str, Builder] = {}


def table(name: str) -> Callable[[Builder], Builder]:
    """Makes a function the builder of the tables that pages call by this name."""

    def register(builder: Builder) -> Builder:
        assert name not in BUILDERS, name
        BUILDERS[name] = builder
        return builder

    return register


def fixed(value: float | None, places: int) -> str:
    """A figure with so many decimals, or a dash where there is none."""
    return NONE if value is None else f"{value:.{places}f}"


def significant(value: float | None, digits: int) -> str:
    """A figure with so many significant digits, without an exponent."""
    if value is None:
        return NONE
    places = digits - len(str(int(abs(value))).lstrip("0"))
    return f"{value:.{max(places, 0)}f}"


def percent(share: float | None, places: int = 0) -> str:
    return NONE if share is None else f"{100 * share:.{places}f} %"


def span(values: Iterable[float], places: int) -> str:
    """The least and the greatest of some figures."""
    known = sorted(values)
    return f"{known[0]:.{places}f} to {known[-1]:.{places}f}"


def size(count: int) -> str:
    """A number of bytes in the largest unit that divides it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count % _KIB or unit == "GiB":
            break
        count //= _KIB
    return f"{count} {unit}"


def pivot(
    heads: Sequence[str],
    cells: dict[tuple[Any, Any], str],
    shown_row: Callable[[Any], Sequence[str]],
    shown_column: Callable[[Any], str],
) -> Table:
    """A table of cells by row and column, both in the order in which they come first."""
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    return Table(
        [*heads, *map(shown_column, columns)],
        [[*shown_row(row), *(cells.get((row, at), NONE) for at in columns)] for row in rows],
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
