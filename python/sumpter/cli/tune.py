"""`sumpter tune`: other sizes, or another tuner, for a job that runs."""

from __future__ import annotations

from typing import Annotated

import typer

from sumpter._assignments import parse_assignments
from sumpter._failure import UsageError
from sumpter.cli.options import (
    CoordinatorOption,
    JsonOption,
    TokenFileOption,
    TokenOption,
    given,
    reached,
)
from sumpter.cli.printing import waiting
from sumpter.console import actions

EXAMPLE = (
    "Example: sumpter tune --set partition=1MiB,credit=4MiB --coordinator 10.0.0.1:7700 "
    "--token-file job.token"
)


def tune(
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE,...",
            help="partition, credit or chunk, in bytes or such as 1MiB; may be repeated. "
            "A tuner that is at work stops.",
        ),
    ] = None,
    tuner: Annotated[
        str | None,
        typer.Option(
            "--tuner",
            metavar="NAME",
            help="Who chooses the sizes from now on: fixed, grid, bayes or autobyte.",
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First take back all changes since the start.")
    ] = False,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="NAME",
            help="Which job, if there are several; with a list of tenants its token suffices. "
            "`last` is the job that your last `sumpter run` on this machine runs.",
        ),
    ] = None,
    coordinator: CoordinatorOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the sizes a running job works with, or who chooses them.

    All ranks go over at the same moment; no round is lost and no result differs. What cannot be,
    such as a credit under a partition, is said in one line and changes nothing.
    """
    assignments = [part for text in sizes or [] for part in text.split(",")]
    changes = parse_assignments(assignments) | given(tuner=tuner)
    if not changes and not reset:
        raise UsageError("nothing to change: give --set, --tuner or --reset")
    settings, job = reached(coordinator, token, token_file, job)
    with waiting("waiting for the coordinator"):
        done = actions.tune(changes, settings, job=job, reset=reset)
    typer.echo(done.document if as_json else "\n".join(done.lines))
