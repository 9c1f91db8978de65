"""What a page is made of: sections of text, figures, tables. No HTML here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows under heads; numbers are right-aligned."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Figure:
    """A plot, in words for who does not see it, and the same numbers as a table."""

    title: str
    alt: str
    plot: go.Figure
    table: Table
    note: str = ""
    wide: bool = False  # takes the whole width of a laptop's screen


@dataclass(frozen=True)
class Section:
    """Part of the page about one file or one question."""

    title: str
    source: str  # the file it is from
    findings: Sequence[str] = ()  # the answer in sentences, for the top of the page
    notes: Sequence[str] = ()  # how to read it
    warnings: Sequence[str] = ()
    lead: Sequence[Table] = ()  # tables that are the answer: above the figures
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    facts: dict[str, Any] = field(default_factory=dict)  # a short list of names and values
