"""`sumpter drain`: take a server out of the running jobs, which go on without it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sumpter import _native
from sumpter._failure import Failure
from sumpter.cli.options import (
    CoordinatorOption,
    JsonOption,
    LastOption,
    TokenFileOption,
    TokenOption,
    reached,
)

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
    text = _native.drain(who, settings)
    report = json.loads(text)
    if not report["drained"]:
        others = ", ".join(map(_name, report["others"])) or "none"
        raise Failure(f"no server is called {who}; servers there are: {others}")
    if as_json:
        typer.echo(text)
        return
    for server in report["drained"]:
        typer.echo(f"server {_name(server)} is drained; it ends when no job uses it any more")


def _name(server: dict[str, object]) -> str:
    return f"{server['member']} on {server['host']}"
