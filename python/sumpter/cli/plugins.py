"""Commands of other distributions, found by the entry-point group `sumpter.commands`.

An entry point has the command's name and leads to a `typer.Typer`. It is loaded when its command
runs: `sumpter --help` lists the names below without looking for them.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from sumpter._failure import UsageError

GROUP = "sumpter.commands"
# The distribution that has the commands, where it comes from while no index has it, and a line
# about each.
LABORATORY = "sumpter-lab"
WHEEL = "target/dist/sumpter_lab-*.whl"
COMMANDS = {
    "record": "Run a training script in PyTorch and write the profile of its model.",
    "whatif": "Say what an iteration would take on other networks, and why.",
    "report": "Make one page of HTML about a run: timeline, share of the optimum, what-if, advice.",
    "reproduce": "Run the papers' figures and tables, and judge them: a list, one, or all.",
    "bench": "Measure how far Sumpter is from the limit of a network, and what it survives.",
}


def _subcommands(context: typer.Context, incomplete: str) -> list[str]:
    """What the shell completes: the first word, where it is a command of the application."""
    try:
        registered = load(context.info_name or "").registered_commands
    except UsageError:
        return []
    # One with a single command has it without a name.
    if context.params.get("words") or len(registered) == 1:
        return []
    names = [one.name for one in registered if one.name and not one.hidden]
    return [name for name in names if name.startswith(incomplete)]


def add(app: typer.Typer, name: str) -> None:
    """Adds a command that hands all its arguments to the entry point of its name."""

    def forward(
        words: Annotated[list[str] | None, typer.Argument(autocompletion=_subcommands)] = None,
    ) -> None:
        loaded = load(name)
        code = loaded(words or [], prog_name=f"sumpter {name}", standalone_mode=False)
        raise typer.Exit(code if isinstance(code, int) else 0)

    app.command(
        name,
        help=f"{COMMANDS[name]} (needs {LABORATORY})",
        add_help_option=False,
        context_settings={
            "allow_interspersed_args": False,
            "ignore_unknown_options": True,
        },
    )(forward)


def load(name: str) -> typer.Typer:
    """The application behind a command. Raises UsageError where it is not installed."""
    for entry in metadata.entry_points(group=GROUP, name=name):
        return entry.load()
    raise UsageError(
        f"`sumpter {name}` is a command of the laboratory, which is not installed: "
        f"in a checkout of Sumpter `make wheel` and `pip install {WHEEL}`"
    )
