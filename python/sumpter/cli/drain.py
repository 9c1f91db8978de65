"""`sumpter drain`: take a server out of the running jobs, which go on without it."""

from __future__ import annotations

from typing import Annotated

import typer

from sumpter.cli.options import (
    CoordinatorOption,
    JsonOption,
    LastOption,
    TokenFileOption,
    TokenOption,
    reached,
)
from sumpter.cli.printing import waiting
from sumpter.console import actions

EXAMPLE = "Example: sumpter drain cpu-3 --coordinator 10.0.0.1:7700 --token-file job.token"


def drain(
    who: Annotated[
        str,
        typer.Argument(
            metavar="ID|HOST",
            help="A server's number, as `sumpter status --json` shows it, or a host: all of its "
            "servers.",
        ),
    ],
    coordinator: CoordinatorOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    job: LastOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a server out of all jobs: they go on without it, then it ends."""
    settings, _ = reached(coordinator, token, token_file, job)
    with waiting("waiting for the coordinator"):
        done = actions.drain(who, settings)
    typer.echo(done.document if as_json else "\n".join(done.lines))
