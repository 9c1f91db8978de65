"""`sumpter doctor`: what stands in the way of a job on this machine, and the remedy."""

from __future__ import annotations

from typing import Annotated

import typer

from sumpter._failure import UsageError

EXAMPLE = "Example: sumpter doctor --coordinator 10.0.0.1:7700"


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
) -> None:
    """Look for what stands in the way of a job on this machine, and name the remedy.

    Versions, PyTorch, network, ports, limits, processor and settings, then sums between two
    processes. The exit code is 1 if any finding is an error.
    """
    if topology:
        if coordinator is not None:
            raise UsageError("--topology and --coordinator exclude each other")
        _show_topology(as_json)
        return
    from sumpter.doctor import ERROR, Probe, examine
    from sumpter.doctor.job import host_and_port

    if coordinator is not None and host_and_port(coordinator) is None:
        raise UsageError(f"--coordinator {coordinator}: write HOST:PORT")
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
