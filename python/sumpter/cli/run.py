"""`sumpter run`: its options, turned into a job for the launcher."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sumpter.cli.errors import Failure, UsageError
from sumpter.cli.options import SetOption, given, parse_assignments

if TYPE_CHECKING:
    from sumpter.launch import Layout

EXAMPLE = (
    "Example: sumpter run -n 2 -s 1 -- python examples/digits.py\n\n"
    "On several machines: sumpter run -H host1:2,host2:2 --server-hosts host3 -- python train.py"
)

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
        int | None,
        typer.Option(
            "--workers",
            "-n",
            metavar="N",
            min=1,
            help="Training processes (default with -H: as many as there are slots).",
        ),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(
            "--servers", "-s", metavar="K", min=0, help="Summation servers on this machine."
        ),
    ] = None,
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
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            "-H",
            metavar="HOST:SLOTS,...",
            help="Run the workers on these machines, over ssh; ranks fill the slots in order.",
        ),
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option(
            "--hostfile", metavar="FILE", help="Hosts from a file, one `HOST slots=N` a line."
        ),
    ] = None,
    server_hosts: Annotated[
        str | None,
        typer.Option(
            "--server-hosts",
            metavar="HOST,...",
            help="Run summation servers on these machines, over ssh.",
        ),
    ] = None,
    pass_on: Annotated[
        list[str] | None,
        typer.Option(
            "-x",
            metavar="NAME[=VALUE]",
            help="Pass another variable to all processes; may be repeated.",
        ),
    ] = None,
    ssh: Annotated[
        str | None,
        typer.Option(
            "--ssh", metavar="COMMAND", help="The remote shell (default: ssh -o BatchMode=yes)."
        ),
    ] = None,
    ssh_port: Annotated[
        int | None,
        typer.Option("--ssh-port", metavar="PORT", min=1, max=65535, help="Port of the sshds."),
    ] = None,
    ssh_identity: Annotated[
        Path | None,
        typer.Option("--ssh-identity", metavar="FILE", help="Private key to log in with."),
    ] = None,
    start_timeout: Annotated[
        float,
        typer.Option(
            "--start-timeout",
            metavar="SECONDS",
            min=0.1,
            help="How long to wait until every machine answers.",
        ),
    ] = 30.0,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Python with sumpter on every machine (default: the same path as here).",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--chdir", metavar="DIR", help="Working directory everywhere (default: as here)."
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="This machine's address for the others (default: the one ssh comes from).",
        ),
    ] = "",
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
    """Start a whole job: coordinator here, servers and workers here or on other machines.

    Each line of output says who wrote it. When anything fails, everything ends, and the exit code
    is that of the first worker that failed. At the end a summary shows the plan, the bytes and
    who waited for whom.
    """
    settings = job_settings(assignments) | given(bandwidth_gbps=bandwidth_gbps)
    if deterministic:
        settings["deterministic"] = "true"

    from sumpter.launch import JobSpec, RemoteShell, launch
    from sumpter.launch.remote import DEFAULT_SHELL

    spec = JobSpec(
        command=tuple(command),
        layout=_layout(workers, servers, machines, hosts, hostfile, server_hosts),
        settings=settings,
        log_dir=log_dir,
        shell=RemoteShell(ssh or DEFAULT_SHELL, ssh_port, ssh_identity),
        python=python or sys.executable,
        folder=folder or Path.cwd(),
        pass_on=tuple(pass_on or ()),
        start_timeout_s=start_timeout,
        address=address,
    )
    raise typer.Exit(launch(spec))


def job_settings(assignments: list[str] | None) -> dict[str, str]:
    """Settings from `--set`, without those that a launcher decides."""
    settings = parse_assignments(assignments)
    for name in settings:
        if name in _DECIDED_HERE:
            raise UsageError(f"--set {name}: the launcher decides this by its own options")
    return settings


def _layout(
    workers: int | None,
    servers: int | None,
    machines: int | None,
    hosts: str | None,
    hostfile: Path | None,
    server_hosts: str | None,
) -> Layout:
    from sumpter.launch.environment import own_names
    from sumpter.launch.layout import HERE, Host, on_hosts, on_one_machine, parse_hosts

    if hosts is None and hostfile is None:
        if workers is None:
            raise UsageError("--workers (-n) is missing: give it, or hosts by -H or --hostfile")
        if server_hosts is None:
            machines = workers if machines is None else machines
            if machines > workers:
                raise UsageError(
                    f"--machines {machines}: there are only {workers} workers to spread"
                )
            return on_one_machine(workers, servers or 0, machines)
    if machines is not None:
        raise UsageError("--machines pretends: it does not go with other hosts")
    if servers is not None and server_hosts is not None:
        raise UsageError("--servers and --server-hosts exclude each other")
    here = own_names()
    if server_hosts is not None:
        helpers = parse_hosts(server_hosts, "--server-hosts", here)
    else:
        helpers = [Host(HERE, servers)] if servers else []
    return on_hosts(_worker_hosts(workers, hosts, hostfile, here), workers, helpers)


def _worker_hosts(
    workers: int | None, hosts: str | None, hostfile: Path | None, here: tuple[str, ...]
) -> list:
    from sumpter.launch.layout import HERE, Host, parse_hostfile, parse_hosts

    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile exclude each other")
    if hosts is not None:
        return parse_hosts(hosts, "--hosts", here)
    if hostfile is not None:
        try:
            text = hostfile.read_text()
        except OSError as error:
            raise Failure(f"cannot read {hostfile}: {error.strerror}") from error
        return parse_hostfile(text, str(hostfile), here)
    assert workers is not None
    return [Host(HERE, workers)]
