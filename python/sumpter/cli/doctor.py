"""`sumpter doctor`: what stands in the way of a job on one or several machines, and the remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sumpter._failure import UsageError
from sumpter.cli import run_options as opt

if TYPE_CHECKING:
    from sumpter.doctor.pairs.session import Listeners, Request
    from sumpter.launch.place import Access
    from sumpter.launch.remote import RemoteShell

EXAMPLE = (
    "Example: sumpter doctor --coordinator 10.0.0.1:7700\n\n"
    "Several machines and the network between them: sumpter doctor -H host1,host2"
)

Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        "-H",
        metavar="HOST,...",
        help="Check these machines, over ssh, and ports, MTU, clocks and speed between each two.",
    ),
]
Hostfile = Annotated[
    Path | None,
    typer.Option(
        "--hostfile",
        metavar="FILE",
        help="The same for the machines of a hostfile, as `sumpter run` reads it.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="With --hosts: also show what is ok of each machine and pair."
    ),
]


def doctor(
    coordinator: Annotated[
        str | None,
        typer.Option(
            "--coordinator",
            metavar="HOST:PORT",
            help="Also look at the way to this coordinator (default: SUMPTER_COORDINATOR).",
        ),
    ] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test/--no-self-test", help="Sum with two ranks at the end.")
    ] = True,
    topology: Annotated[
        bool,
        typer.Option(
            "--topology",
            help="Instead of checking, show what is inside the machine: PCIe switches, GPUs, "
            "NICs, NUMA nodes and NVLink, with the bandwidth of each link.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON list of findings, or the topology as JSON."),
    ] = False,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    verbose: Verbose = False,
    pass_on: opt.PassOn = None,
    ssh: opt.Ssh = None,
    ssh_port: opt.SshPort = None,
    ssh_identity: opt.SshIdentity = None,
    start_timeout: opt.StartTimeout = 30.0,
    python: opt.Python = None,
) -> None:
    """Look for what stands in the way of a job on this machine, and name the remedy.

    Versions, PyTorch, network, ports, limits, processor and settings, then sums between two
    processes. With --hosts the same on several machines, and what is between each two: ports, MTU,
    clocks, round trip and speed. The exit code is 1 if any finding is an error.
    """
    several = hosts is not None or hostfile is not None
    if topology:
        if coordinator is not None or several:
            other = "--hosts" if several else "--coordinator"
            raise UsageError(f"--topology and {other} exclude each other")
        _show_topology(as_json)
        return
    from sumpter.doctor.job import host_and_port

    if coordinator is not None and host_and_port(coordinator) is None:
        raise UsageError(f"--coordinator {coordinator}: write HOST:PORT")
    way = {"--ssh": ssh, "--ssh-port": ssh_port, "--ssh-identity": ssh_identity}
    way |= {"--python": python, "-x": pass_on or None}
    if not several and (unused := [name for name, value in way.items() if value is not None]):
        raise UsageError(f"{unused[0]} is for other machines: give --hosts or --hostfile, too")
    if several:
        from sumpter.launch.remote import DEFAULT_SHELL, RemoteShell

        shell = RemoteShell(ssh or DEFAULT_SHELL, ssh_port, ssh_identity)
        access = _access(shell, python, pass_on, start_timeout)
        request = _request(hosts, hostfile, access, coordinator, self_test)
        _examine_hosts(request, as_json, verbose)
    _examine_here(coordinator, self_test, as_json)


def _examine_here(coordinator: str | None, self_test: bool, as_json: bool) -> NoReturn:
    """Prints what is found on this machine; the exit code says whether that has errors."""
    from sumpter.doctor import ERROR, Probe, examine

    parts = examine(Probe(coordinator), self_test)
    if as_json:
        import json

        findings = [finding for _, part in parts for finding in part]
        typer.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        from rich.console import Console

        from sumpter.doctor.report import print_count, print_findings

        console = Console(highlight=False)
        findings = []
        for title, part in parts:
            print_findings(title, part, console)
            findings += part
        print_count(findings, console)
    raise typer.Exit(int(any(finding.state == ERROR for finding in findings)))


def _access(
    shell: RemoteShell, python: str | None, pass_on: list[str] | None, start_timeout: float
) -> Access:
    """As `sumpter run` gets to machines."""
    from sumpter.launch.environment import passed_on, requested_variables
    from sumpter.launch.place import Access

    return Access(
        shell=shell,
        python=python or sys.executable,
        folder=".",  # where the remote shell begins: no file of the user's is needed
        requested=requested_variables(pass_on or ()),
        passed=passed_on(pass_on or ()),
        start_timeout_s=start_timeout,
    )


def _request(
    hosts: str | None,
    hostfile: Path | None,
    access: Access,
    coordinator: str | None,
    self_test: bool,
) -> Request:
    """Which machines are examined, and with which options on each."""
    from sumpter import _native
    from sumpter.cli.run import given_hosts
    from sumpter.doctor.pairs.session import Request, Target
    from sumpter.launch.environment import own_names

    found = given_hosts(hosts, hostfile, own_names())
    if len(found) < 2:
        raise UsageError("--hosts needs two machines or more; without it this one is examined")
    variables = {row["name"]: row["env"] for row in _native.settings()}
    targets = [
        Target(host.name, {variables[name]: text for name, text in host.settings}) for host in found
    ]
    options = [] if self_test else ["--no-self-test"]
    options += ["--coordinator", coordinator] if coordinator else []
    return Request(targets, access, options, (coordinator or "").rpartition(":")[0].strip("[]"))


def _examine_hosts(request: Request, as_json: bool, verbose: bool) -> NoReturn:
    """Prints the report about several machines and ends with its exit code."""
    from rich.console import Console

    from sumpter.doctor import ERROR
    from sumpter.doctor.pairs.report import as_json as in_json
    from sumpter.doctor.pairs.report import print_report
    from sumpter.doctor.pairs.session import examine

    with _progress() as listeners:
        report = examine(request, listeners)
    if isinstance(report, int):
        raise typer.Exit(report)
    if as_json:
        import json

        typer.echo(json.dumps(in_json(report), indent=2))
    else:
        print_report(report, Console(highlight=False), verbose)
    raise typer.Exit(int(any(finding.state == ERROR for finding in report.all_findings())))


@contextmanager
def _progress() -> Iterator[Listeners]:
    """What is under way, on standard error: a bar on a terminal, else one line."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from sumpter.doctor.pairs.session import Listeners

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("each machine", total=None)
        yield Listeners(
            say=console.print,
            begin=lambda steps: bar.update(task, total=steps),
            step=lambda what: bar.update(task, advance=1, description=what),
        )


def _show_topology(as_json: bool) -> None:
    from sumpter.topology import read_topology

    found = read_topology()
    if as_json:
        import json

        typer.echo(json.dumps(found.as_dict(), indent=2))
        return
    from rich.console import Console

    from sumpter.topology.report import print_topology

    print_topology(found, Console(highlight=False))
