"""`sumpter serve`, `sumpter coordinator` and `sumpter token`: the long-running roles."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from sumpter import _native
from sumpter._assignments import parse_assignments
from sumpter._environment import rack
from sumpter._failure import Failure
from sumpter.cli.options import (
    InterfacesOption,
    MetricsPortOption,
    SetOption,
    TokenFileOption,
    TokenOption,
    given,
    token_settings,
)

SERVE_EXAMPLE = "Example: sumpter serve --join 10.0.0.1:7700 --token-file job.token"
COORDINATOR_EXAMPLE = (
    "Example: sumpter coordinator --listen 0.0.0.0:7700 --token-file cluster.token "
    "--tenants tenants.toml"
)
TOKEN_EXAMPLE = "Example: sumpter token --file job.token"


def serve(
    join: Annotated[
        str | None,
        typer.Option(
            "--join",
            metavar="HOST:PORT",
            help="The job's coordinator (default: SUMPTER_COORDINATOR).",
        ),
    ] = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    lanes: Annotated[
        int | None,
        typer.Option("--lanes", metavar="N", help="Summing threads (default: one per core)."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            help="Port of the first lane; lane i listens on PORT+i (default: any free ports).",
        ),
    ] = None,
    interfaces: InterfacesOption = None,
    metrics_port: MetricsPortOption = None,
    assignments: SetOption = None,
) -> None:
    """Sum gradients on this machine, for one job or for all of a shared coordinator."""
    settings = parse_assignments(assignments)
    settings |= token_settings(token, token_file)
    settings |= given(coordinator=join, lanes=lanes, port=port, interfaces=interfaces)
    settings |= given(metrics_port=metrics_port)
    settings |= rack(settings)
    _leave_on_sigterm()
    _native.serve(settings)


def coordinator(
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Where workers and servers find the coordinator."
        ),
    ],
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    tenants: Annotated[
        Path | None,
        typer.Option(
            "--tenants",
            metavar="FILE",
            help="The jobs to admit, each with a token and quotas of its own "
            "(docs/user/tenants.md); --token is then the servers' alone.",
        ),
    ] = None,
    metrics_port: MetricsPortOption = None,
    assignments: SetOption = None,
) -> None:
    """Run a coordinator as a process of its own (by default rank 0 embeds one)."""
    settings = parse_assignments(assignments) | token_settings(token, token_file)
    settings |= given(tenants=tenants, metrics_port=metrics_port)
    _leave_on_sigterm()
    _native.run_coordinator(listen, settings)


def token(
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Write it to a new file only you can read."),
    ] = None,
) -> None:
    """Make a fresh token for a job."""
    if file is None:
        typer.echo(_native.generate_token())
        return
    try:
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(_native.generate_token() + "\n")
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror}") from error


def _leave_on_sigterm() -> None:
    """SIGTERM, like Ctrl-C, lets the role announce that it leaves."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
