"""A job on this machine, from a command to an exit code."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live

from sumpter import _native
from sumpter.cli.errors import Failure
from sumpter.launch.environment import Environment, Shape, bandwidth_gbps, free_port
from sumpter.launch.output import Label, Output
from sumpter.launch.process import Guard, Role
from sumpter.launch.progress import Progress
from sumpter.launch.summary import print_summary
from sumpter.launch.supervise import supervise

# A shell's codes for a command that is not there, or not executable.
_NOT_FOUND = 127

# The live line follows the status, which is polled each second.
_REFRESH_PER_SECOND = 2


@dataclass(frozen=True)
class JobSpec:
    """What the user asked for."""

    command: tuple[str, ...]
    shape: Shape
    settings: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None


def launch(spec: JobSpec) -> int:
    """Runs the whole job; its exit code is that of the first worker that failed."""
    if shutil.which(spec.command[0]) is None:
        error = Failure(f"cannot run '{spec.command[0]}': no such command")
        error.exit_code = _NOT_FOUND
        raise error
    console = Console(highlight=False)
    token = _native.generate_token()
    settings = {**spec.settings, "token": token, "servers": str(spec.shape.servers)}
    # Refuses a setting that is not in the table or out of its range before anything starts.
    coordinator = _native.Coordinator("127.0.0.1:0", settings, repeated=True)
    try:
        settings["coordinator"] = coordinator.address
        variables = _as_variables(spec.settings)
        environment = Environment(spec.shape, coordinator.address, token, variables, free_port())
        bandwidth = bandwidth_gbps(spec.settings)
        progress = Progress(lambda: _native.status(settings), bandwidth)
        with Output(console, spec.log_dir) as output:
            progress.start()
            with _live_line(console, progress), _guard() as guard:
                code = asyncio.run(supervise(_roles(spec, environment), output, guard))
            print_summary(console, progress.stop(), bandwidth)
        return code
    finally:
        coordinator.stop()


def _as_variables(settings: Mapping[str, str]) -> dict[str, str]:
    names = {row["name"]: row["env"] for row in _native.settings()}
    return {names[name]: value for name, value in settings.items()}


def _roles(spec: JobSpec, environment: Environment) -> list[Role]:
    # -P: a folder named sumpter in the user's directory must not shadow the package.
    serve = (sys.executable, "-P", "-m", "sumpter", "serve")
    servers = [
        Role(Label("server", index), serve, environment.server(index))
        for index in range(spec.shape.servers)
    ]
    workers = [
        Role(Label("worker", rank), spec.command, environment.worker(rank))
        for rank in range(spec.shape.workers)
    ]
    return servers + workers


@contextmanager
def _guard() -> Iterator[Guard]:
    guard = Guard()
    try:
        yield guard
    finally:
        guard.close()


@contextmanager
def _live_line(console: Console, progress: Progress) -> Iterator[None]:
    if not sys.stdout.isatty():
        yield
        return
    with Live(
        console=console,
        get_renderable=progress.line,
        refresh_per_second=_REFRESH_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield
