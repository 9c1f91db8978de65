"""The laboratory's commands of `sumpter`: options in, figures out.

Each is a Typer application, declared in `lab/pyproject.toml` as an entry point of the group
`sumpter.commands`. `sumpter.cli.options` has the options that they share with the product's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import typer

# What the product's own commands have.
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


def group(help: str) -> typer.Typer:
    """An application of several commands."""
    return typer.Typer(
        no_args_is_help=True,
        help=help,
        context_settings=HELP_OPTIONS,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def single(command: Callable[..., None], epilog: str, **context_settings: Any) -> typer.Typer:
    """An application of one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(epilog=epilog, context_settings={**HELP_OPTIONS, **context_settings})(command)
    return app


def scripted(app: typer.Typer, name: str, help: str) -> None:
    """Adds the instrument `sumpter_lab.NAME`, which reads its arguments itself."""

    def forward(context: typer.Context) -> None:
        importlib.import_module(f"sumpter_lab.{name}").main(context.args)

    app.command(
        name,
        help=help,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(forward)
