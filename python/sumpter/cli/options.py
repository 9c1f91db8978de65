"""Options that several commands share, and how their text becomes settings.

Settings travel as text (name to value) to the one table in Rust, which checks types and ranges;
this module only turns options into that text.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Annotated, Literal

import typer

from sumpter._assignments import check_free, parse_assignments
from sumpter._failure import UsageError

TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="The job's token. Anyone on this machine can read it in `ps`: prefer the "
        "environment variable SUMPTER_TOKEN or --token-file.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File that holds the job's token."),
]
CoordinatorOption = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="HOST:PORT",
        help="The job's coordinator (default: SUMPTER_COORDINATOR).",
    ),
]
JobOption = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="NAME",
        help="Only this job; with a list of tenants the job's own token then suffices. `last` is "
        "the job that your last `sumpter run` on this machine runs: it needs no other option.",
    ),
]
LastOption = Annotated[
    Literal["last"] | None,
    typer.Option(
        "--job",
        metavar="last",
        help="The coordinator of the job that your last `sumpter run` on this machine runs.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting of `sumpter config`, such as partition_bytes=4MiB; may be repeated.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of a table.")
]

InterfacesOption = Annotated[
    str | None,
    typer.Option(
        "--interfaces",
        metavar="NAME,..",
        help="Network interfaces that carry data, by name or address; with several, lanes are "
        "dealt over them (default: SUMPTER_INTERFACES, or the one that leads to the coordinator).",
    ),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        help="Tell Prometheus what is counted at http://127.0.0.1:PORT/metrics; for other "
        "addresses --set metrics_address=IP (default: SUMPTER_METRICS_PORT, or not at all).",
    ),
]


def parse_free_assignments(
    assignments: list[str] | None, decided: Container[str]
) -> dict[str, str]:
    """As parse_assignments(), checked, for a command that decides some settings by itself."""
    settings = parse_assignments(assignments)
    check_free(settings, decided)
    return settings


def token_settings(token: str | None, token_file: Path | None) -> dict[str, str]:
    """The token as a setting; nothing when neither option is given."""
    if token is not None and token_file is not None:
        raise UsageError("--token and --token-file exclude each other")
    if token is not None:
        return {"token": token}
    return {} if token_file is None else {"token_file": str(token_file)}


def reached(
    coordinator: str | None, token: str | None, token_file: Path | None, job: str | None = None
) -> tuple[dict[str, str], str | None]:
    """The settings by which a job is reached, and its name where one is wanted."""
    from sumpter.launch.running import LAST, last_settings

    if job == LAST:
        if coordinator is not None or token is not None or token_file is not None:
            raise UsageError(
                f"--job {LAST} already says which coordinator and token: leave out --coordinator, "
                "--token and --token-file"
            )
        return last_settings(), None
    return token_settings(token, token_file) | given(coordinator=coordinator), job


def given(**options: object) -> dict[str, str]:
    """The options that were given (are not None) as settings."""
    return {name: str(value) for name, value in options.items() if value is not None}
