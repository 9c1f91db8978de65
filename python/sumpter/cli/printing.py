"""Tables printed whole, where rich would cut them to 80 columns, and what a command waits for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_WIDEST = 1000  # characters of a table


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Shows what a command waits for, on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(what)):
        yield


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
