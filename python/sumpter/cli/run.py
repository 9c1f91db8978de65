"""`sumpter run`: its options, turned into a job for the launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sumpter.cli.errors import UsageError
from sumpter.cli.options import SetOption, given, parse_assignments

EXAMPLE = "Example: sumpter run -n 2 -s 1 -- python examples/digits.py"

# These follow from the other options; a second source would contradict them.
_DECIDED_HERE = frozenset(
    {
        "coordinator",
        "local_rank",
        "local_size",
        "machine",
        "rank",
        "servers",
        "token",
        "token_file",
        "world_size",
    }
)


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The training script and its arguments.")
    ],
    workers: Annotated[
        int, typer.Option("--workers", "-n", metavar="N", min=1, help="Training processes.")
    ],
    servers: Annotated[
        int, typer.Option("--servers", "-s", metavar="K", min=0, help="Summation servers.")
    ] = 0,
    machines: Annotated[
        int | None,
        typer.Option(
            "--machines",
            metavar="M",
            min=1,
            help="Pretend that the workers run on M machines (default: one each). "
            "LOCAL_RANK follows: with one machine, rank r uses device r.",
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Add in rank order: the same bytes in every run."),
    ] = False,
    bandwidth_gbps: Annotated[
        float | None,
        typer.Option(
            "--bandwidth-gbps",
            metavar="G",
            help="Bandwidth of a machine's link each way; the share of the optimum needs it "
            "(default: SUMPTER_BANDWIDTH_GBPS).",
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option("--log-dir", metavar="DIR", help="Also keep each process' output here."),
    ] = None,
    assignments: SetOption = None,
) -> None:
    """Start a whole job on this machine: coordinator, servers and workers.

    Each line of output says who wrote it. When anything fails, everything ends, and the exit code
    is that of the first worker that failed. At the end a summary shows the plan, the bytes and
    who waited for whom.
    """
    settings = parse_assignments(assignments)
    for name in settings:
        if name in _DECIDED_HERE:
            raise UsageError(f"--set {name}: `sumpter run` decides this by its own options")
    settings |= given(bandwidth_gbps=bandwidth_gbps)
    if deterministic:
        settings["deterministic"] = "true"
    machines = workers if machines is None else machines
    if machines > workers:
        raise UsageError(f"--machines {machines}: there are only {workers} workers to spread")

    from sumpter.launch import JobSpec, Shape, launch

    spec = JobSpec(
        command=tuple(command),
        shape=Shape(workers, servers, machines),
        settings=settings,
        log_dir=log_dir,
    )
    raise typer.Exit(launch(spec))
