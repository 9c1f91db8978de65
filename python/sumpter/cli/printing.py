"""Prints tables whole, where rich would cut them to 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WIDEST = 1000  # characters of a table


def print_parts(parts: Sequence[Any], *, wraps: bool = False) -> None:
    """Prints texts and tables below each other, no table cut to the width of the terminal.

    A line that is too long is the terminal's to wrap. Tables whose columns wrap (`wraps`) are
    fitted to a terminal; a file or a pipe has no width.
    """
    from rich.console import Console, Group
    from rich.table import Table

    console = Console(highlight=False)
    if not (wraps and console.is_terminal):
        options = console.options.update(max_width=_WIDEST)
        tables = (part for part in parts if isinstance(part, Table))
        widths = (console.measure(table, options=options).maximum for table in tables)
        console.width = max([console.width, *widths])
    console.print(Group(*parts))
