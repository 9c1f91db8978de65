"""`sumpter jobs`: the jobs of a coordinator, a line each."""

from __future__ import annotations

import json

import typer

from sumpter import _native
from sumpter.cli.options import (
    CoordinatorOption,
    JobOption,
    JsonOption,
    TokenFileOption,
    TokenOption,
    reached,
)
from sumpter.cli.printing import waiting

EXAMPLE = "Example: sumpter jobs --coordinator 10.0.0.1:7700 --token-file cluster.token"


def jobs(
    coordinator: CoordinatorOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    job: JobOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of a coordinator: state, size, speed, memory and weight.

    n and k are the machines with workers and those that only sum. Rounds and bytes per second are
    of tensors summed, for each worker on average since its start. Memory is what the job's sums
    occupy on the servers.
    """
    from sumpter.launch.jobs import print_jobs, read_jobs

    settings, job = reached(coordinator, token, token_file, job)
    with waiting("waiting for the coordinator"):
        text = _native.status(settings, job)
    rows = read_jobs(text)
    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in rows], indent=2))
        return
    if not rows:
        typer.echo("The coordinator knows no such job." if job else "There is no job.")
        return
    print_jobs(rows)
