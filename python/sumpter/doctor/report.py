"""The findings for people: aligned lines, in colour on a terminal, the same words without."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sumpter.doctor.finding import ERROR, NOTE, OK, STATES, WARNING, Finding

STYLES = {OK: "green", NOTE: "cyan", WARNING: "yellow", ERROR: "bold red"}


def print_findings(title: str, findings: Iterable[Finding], console: Console) -> None:
    """One part of the report."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, width=7)
    table.add_column(no_wrap=True, width=24)
    table.add_column(overflow="fold", ratio=1)
    for finding in findings:
        style = STYLES[finding.state]
        table.add_row(Text(finding.state, style), Text(finding.check), Text(finding.found))
        if finding.remedy:
            table.add_row("", Text("remedy", "dim"), Text(finding.remedy, style))
    console.print(Text(title, "bold"))
    console.print(table)


def print_count(findings: list[Finding], console: Console) -> None:
    """The last line: how many of each state."""
    counts = {state: sum(f.state == state for f in findings) for state in STATES}
    worst = max(STATES.index(finding.state) for finding in findings)
    parts = [f"{count} {state}" for state, count in counts.items()]
    console.print(Text(", ".join(parts), STYLES[STATES[worst]]))
