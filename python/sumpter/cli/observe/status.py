"""`sumpter status`: the members of a job, their counters, and stragglers."""

from __future__ import annotations

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

EXAMPLE = "Example: sumpter status --coordinator 10.0.0.1:7700 --token-file job.token"


def status(
    coordinator: CoordinatorOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    job: JobOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the members of a running job, their counters, and stragglers.

    An operation that has waited for stall_warning_s is shown with the rank that has not begun it,
    or the lane that has not answered; in the JSON it is the job's "stall".
    """
    settings, job = reached(coordinator, token, token_file, job)
    with waiting("waiting for the coordinator"):
        text = _native.status(settings, job)
    if as_json:
        typer.echo(text)
        return
    from rich.console import Console

    from sumpter.launch.status import read_status
    from sumpter.launch.summary import print_job

    console = Console(highlight=False)
    jobs = read_status(text)
    if not jobs:
        console.print("The coordinator knows no job yet.")
    for one in jobs:
        print_job(console, one)
