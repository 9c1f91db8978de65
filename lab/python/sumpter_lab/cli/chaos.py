"""`sumpter bench chaos`: its options; the work is done in sumpter_lab.chaos."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sumpter._failure import Failure, UsageError
from sumpter.cli.options import SetOption, parse_free_assignments
from sumpter_lab.cli.options import FiguresOption, RateOption
from sumpter_lab.scaffold.results.output import check_writable, write_json

EXAMPLE = "Example: sumpter bench chaos --seconds 30 -- python examples/digits.py"

# These follow from the other options, or from where a process runs.
_DECIDED_HERE = frozenset(
    {
        *("coordinator", "deterministic", "interfaces", "job", "lanes", "local_rank", "local_size"),
        *("machine", "port", "rank", "servers", "timeline", "token", "token_file", "world_size"),
    }
)

Command = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND",
        help="What each worker runs, with --seconds S or --epochs N and --digest appended. It "
        "prints 'trained N epochs, parameters SHA256' at its end.",
    ),
]
Workers = Annotated[int, typer.Option("--workers", "-n", metavar="N", min=2, help="Workers.")]
Servers = Annotated[
    int, typer.Option("--servers", "-s", metavar="K", min=0, help="Servers at the start.")
]
Slots = Annotated[
    int | None,
    typer.Option("--slots", metavar="K", min=1, help="The most servers (default: one more)."),
]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", min=1, help="How long to train with faults.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Which faults happen when.")]
Faults = Annotated[
    str | None,
    typer.Option(
        "--faults",
        metavar="KIND,..",
        help="Only these: kill, stall, freeze, drain, join, cut, unplug, hush, coordinator; or "
        "none.",
    ),
]
Restarts = Annotated[
    bool,
    typer.Option("--coordinator-restarts", help="Also kill the coordinator and start it again."),
]
Local = Annotated[
    bool,
    typer.Option("--local", help="Plain processes on loopback instead of namespaces: no root."),
]
Reference = Annotated[
    int,
    typer.Option(
        "--reference-servers", metavar="K", min=0, help="Servers of the run without faults."
    ),
]
LogDir = Annotated[
    Path | None,
    typer.Option(
        "--log-dir",
        metavar="DIR",
        help="A new folder for the log of each process (default: kept only if the run fails).",
    ),
]


def chaos(
    command: Command,
    workers: Workers = 4,
    servers: Servers = 3,
    slots: Slots = None,
    seconds: Seconds = 30.0,
    seed: Seed = 1,
    faults: Faults = None,
    coordinator_restarts: Restarts = False,
    local: Local = False,
    rate_mbit: RateOption = 200.0,
    reference_servers: Reference = 0,
    assignments: SetOption = None,
    output: FiguresOption = None,
    log_dir: LogDir = None,
) -> None:
    """Train while servers die, stall, leave and join and links fail (root, or --local).

    A fault comes every 1 to 2 s. The final parameters are then compared, byte for byte, with
    those of the same training undisturbed. The exit code is 0 only if they are equal.
    """
    from rich.console import Console

    from sumpter_lab.chaos.outcome import print_outcome
    from sumpter_lab.chaos.run import Spec, kinds_of, run
    from sumpter_lab.scaffold import units

    names = None if faults is None else [name.strip() for name in faults.split(",")]
    asked = Spec(
        command=tuple(command),
        seconds=seconds,
        seed=seed,
        workers=workers,
        servers=servers,
        slots=_slots(servers, slots, reference_servers),
        local=local,
        rate_mbit=units.check_rate(rate_mbit, "--rate-mbit"),
        kinds=kinds_of(names, local, coordinator_restarts),
        reference_servers=reference_servers,
        settings=parse_free_assignments(assignments, _DECIDED_HERE),
    )
    check_writable(output, "--output")
    console = Console(highlight=False, markup=False)
    folder = _folder(log_dir)
    keep = True
    try:
        found = run(asked, folder, lambda text: typer.echo(text, err=True))
        print_outcome(console, found)
        if output is not None:
            write_json(output, found, indent=2)
        keep = not found["passed"]
    except SystemExit:
        keep = False  # a signal: the cause is known
        raise
    finally:
        if keep or log_dir is not None:
            typer.echo(f"logs of all processes: {folder}", err=True)
        else:
            shutil.rmtree(folder)
    if not found["passed"]:
        raise typer.Exit(1)


def _slots(servers: int, slots: int | None, reference_servers: int) -> int:
    count = servers + 1 if slots is None else slots
    if max(servers, reference_servers) > count:
        raise UsageError(f"--slots {count}: there must be a place for every server")
    return count


def _folder(log_dir: Path | None) -> Path:
    if log_dir is None:
        return Path(tempfile.mkdtemp(prefix="sumpter-chaos-"))
    try:
        log_dir.mkdir(parents=True)
    except OSError as error:
        raise Failure(f"--log-dir {log_dir}: {error.strerror}") from error
    return log_dir
