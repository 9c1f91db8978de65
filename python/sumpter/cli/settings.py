"""`sumpter config`: the settings table, for people and as the documentation page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sumpter import _native
from sumpter._environment import nearest
from sumpter._failure import UsageError
from sumpter._variables import LAUNCHERS, TUNING, Variable
from sumpter.cli.options import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE = "Example: sumpter config credit_bytes\n\nor: sumpter config --search timeout"

_OTHERS = """
## Variables of other launchers and libraries

These count after a setting's own variable. Of the launchers, the first in this order that states
both a rank and a number of workers decides; what others say of the same rank fills the gaps. Two
that can hardly mean one job are a warning; half a statement that contradicts is an error.
Whatever has no effect is logged once at level INFO by the logger `sumpter`.

| variable | of | becomes | note |
|---|---|---|---|
"""

_PREFACE = """\
# Configuration

<!-- Made by `make docs` from the settings table in crates/config; edit that table instead. -->

Every setting has one name. An argument (`--set name=value`, or the keyword of `sumpter.init`)
beats the environment variable, which beats the default. A value out of range is an error that
names the setting, where the value came from and the range. Sizes may be written as `65536`,
`4MB` or `1MiB`.
"""


def _beginning(incomplete: str) -> list[str]:
    """What the shell completes: settings, and their variables where one has been begun."""
    kinds = ("name", "env") if incomplete else ("name",)
    names = (row[kind] for row in _native.settings() for kind in kinds)
    return [name for name in names if name.startswith(incomplete)]


def config(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Only this setting; its environment variable names it as well.",
            autocompletion=_beginning,
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--search", metavar="TEXT", help="Only settings that mention this text."),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/user/configuration.md.")
    ] = False,
    as_json: JsonOption = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Print the table of docs/user/metrics.md instead.")
    ] = False,
) -> None:
    """Show every setting: its name, environment variable, default, range and meaning."""
    if metrics:
        typer.echo(metrics_as_markdown(), nl=False)
        return
    rows = _chosen(_native.settings(), name, search)
    if as_json:
        import json

        typer.echo(json.dumps(rows, indent=2))
    elif markdown:
        typer.echo(as_markdown(rows), nl=False)
    else:
        _print(rows)


def _chosen(
    rows: list[dict[str, str]], name: str | None, search: str | None
) -> list[dict[str, str]]:
    """The settings that are asked for. Raises UsageError if there is none."""
    if name is not None:
        found = [row for row in rows if name.lower() in (row["name"], row["env"].lower())]
        if not found:
            known = [row["name"] for row in rows] + [row["env"] for row in rows]
            meant = nearest(name, known)
            advice = f"did you mean {meant}?" if meant else "try `sumpter config --search TEXT`"
            raise UsageError(f"there is no setting {name}; {advice}")
        rows = found
    if search is not None:
        words = search.lower().split()
        rows = [
            row
            for row in rows
            if all(word in f"{row['name']} {row['env']} {row['doc']}".lower() for word in words)
        ]
        if not rows:
            raise UsageError(f"--search {search}: no setting mentions this")
    return rows


def as_markdown(rows: list[dict[str, str]]) -> str:
    """The text of docs/user/configuration.md."""
    lines = [_PREFACE]
    # Few columns, of several lines each, fit a laptop's screen beside the navigation.
    lines.append("| setting and variable | default, range | meaning |")
    lines.append("|---|---|---|")
    for row in rows:
        cells = [
            f"`{row['name']}`<br>`{row['env']}`",
            "<br>".join(filter(None, [_default(row), row["range"]])),
            row["doc"],
        ]
        lines.append(_row(cells))
    others = [
        _row([f"`{variable.name}`", owner, _setting_of(variable), variable.note])
        for owner, variable in _other_variables()
    ]
    return "\n".join(lines) + "\n" + _OTHERS + "\n".join(others) + "\n"


def _default(row: dict[str, str]) -> str:
    default, unit = row["default"], row["unit"]
    if not default:
        return f"in {unit}" if unit else ""
    # Of bytes it has a unit of its own.
    return f"`{default}`" if unit in ("", "bytes") else f"`{default}` {unit}"


def metrics_as_markdown() -> str:
    """The table of docs/user/metrics.md."""
    lines = ["| metric | type | of | own labels | meaning |", "|---|---|---|---|---|"]
    for row in _native.metrics():
        labels = ", ".join(f"`{label}`" for label in row["labels"])
        kind, of = str(row["type"]), str(row["of"])
        lines.append(_row([f"`{row['name']}`", kind, of, labels, str(row["help"])]))
    return "\n".join(lines) + "\n"


def _other_variables() -> list[tuple[str, Variable]]:
    """Every variable of the table, after the launcher or library that it belongs to."""
    placing = [(launcher.name, row) for launcher in LAUNCHERS for row in launcher.variables]
    owners = {"HOROVOD_": "Horovod", "BYTEPS_": "BytePS", "DMLC_": "BytePS", "PS_": "BytePS"}
    owners |= {"SLURM_": "Slurm"}
    tuning = [
        (next(owner for prefix, owner in owners.items() if row.name.startswith(prefix)), row)
        for row in TUNING
    ]
    # The settings' own names are in the table above.
    return [(owner, row) for owner, row in (*placing, *tuning) if owner != "torchrun"]


def _setting_of(variable: Variable) -> str:
    masters = {"master_host": "`MASTER_ADDR`", "master_port": "`MASTER_PORT`"}
    own = f"`{variable.setting}`" if variable.setting else ""
    return masters.get(variable.setting, own)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


# Narrower than this, the last column of the table would be a word wide.
_LEAST_MEANING = 40


def _print(rows: list[dict[str, str]]) -> None:
    """A table where it fits, else a paragraph for each setting."""
    from rich.console import Console

    console = Console(highlight=False)
    columns = ("name", "env", "default", "range")
    table_width = sum(max(len(row[name]) for row in rows) + 2 for name in columns)
    if len(rows) > 1 and table_width + _LEAST_MEANING <= console.width:
        _print_table(console, rows)
    else:
        _print_paragraphs(console, rows)


def _print_table(console: Console, rows: list[dict[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("setting", style="cyan", no_wrap=True)
    table.add_column("environment", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("range", no_wrap=True)
    table.add_column("meaning", ratio=1)
    for row in rows:
        table.add_row(*(Text(row[name]) for name in ("name", "env", "default", "range", "doc")))
    console.print(table)


def _print_paragraphs(console: Console, rows: list[dict[str, str]]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for number, row in enumerate(rows):
        if number:
            console.print()
        console.print(Text.assemble((row["name"], "bold cyan"), f"  {row['env']}"))
        facts = [f"default {row['default']}" if row["default"] else "no default", row["range"]]
        console.print(Padding(Text("; ".join(filter(None, facts)), style="dim"), (0, 0, 0, 2)))
        console.print(Padding(Text(row["doc"]), (0, 0, 0, 2)))
