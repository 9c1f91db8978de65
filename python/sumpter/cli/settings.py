"""`sumpter config`: the settings table, for people and as the documentation page."""

from __future__ import annotations

from typing import Annotated

import typer

from sumpter import _native
from sumpter.cli.options import JsonOption

EXAMPLE = "Example: sumpter config --markdown > docs/configuration.md"

_PREFACE = """\
# Configuration

<!-- Made by `make docs` from the settings table in crates/config; edit that table instead. -->

Every setting has one name. An argument (`--set name=value`, or the keyword of `sumpter.init`)
beats the environment variable, which beats the default. A value out of range is an error that
names the setting, where the value came from and the range. Sizes may be written as `65536`,
`4MB` or `1MiB`.
"""


def config(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/configuration.md.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every setting: its name, environment variable, default, range and meaning."""
    rows = _native.settings()
    if as_json:
        import json

        typer.echo(json.dumps(rows, indent=2))
    elif markdown:
        typer.echo(as_markdown(rows), nl=False)
    else:
        _print_table(rows)


def as_markdown(rows: list[dict[str, str]]) -> str:
    """The text of docs/configuration.md."""
    lines = [_PREFACE]
    lines.append("| setting | environment | unit | default | range | meaning |")
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        cells = [
            f"`{row['name']}`",
            f"`{row['env']}`",
            row["unit"],
            f"`{row['default']}`" if row["default"] else "",
            row["range"],
            row["doc"],
        ]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _print_table(rows: list[dict[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("setting", style="cyan", no_wrap=True)
    table.add_column("environment", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("range")
    table.add_column("meaning", ratio=1)
    for row in rows:
        table.add_row(row["name"], row["env"], row["default"], row["range"], row["doc"])
    Console(highlight=False).print(table)
