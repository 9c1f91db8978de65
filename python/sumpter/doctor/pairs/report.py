"""The report about several machines: for people, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sumpter._words import counted
from sumpter.doctor.finding import OK, Finding
from sumpter.doctor.pairs.session import Report
from sumpter.doctor.report import print_count, print_findings


def as_json(report: Report) -> dict[str, Any]:
    """All findings and figures."""
    return {
        "hosts": [
            {
                "host": host.name,
                "address": host.machine.address if host.machine else None,
                "interface": host.machine.interface if host.machine else None,
                "mtu": host.machine.mtu if host.machine else None,
                "findings": [finding.as_dict() for finding in host.findings],
            }
            for host in report.hosts
        ],
        "pairs": [
            {
                "from": pair.there.source.name,
                "to": pair.there.target.name,
                "there": dict(pair.there.figures),
                "back": dict(pair.back.figures),
                "findings": [finding.as_dict() for finding in pair.findings],
            }
            for pair in report.pairs
        ],
        "unmeasured_pairs": report.unmeasured,
        "findings": [finding.as_dict() for finding in report.findings],
    }


def print_report(report: Report, console: Console, verbose: bool) -> None:
    """What is not ok of each machine and pair, all of it if `verbose`, and the figures."""
    for host in report.hosts:
        _print_part(host.title, host.findings, console, verbose)
    _print_part("All machines", report.findings, console, verbose)
    for pair in report.pairs:
        _print_part(pair.title, pair.findings, console, verbose)
    if report.pairs:
        _print_figures(report, console)
    print_count(report.all_findings(), console)


def _print_part(title: str, findings: list[Finding], console: Console, verbose: bool) -> None:
    shown = [finding for finding in findings if verbose or finding.state != OK]
    if shown:
        print_findings(title, shown, console)
    elif findings:
        console.print(Text.assemble((title, "bold"), f": {counted(len(findings), 'check')} ok"))


def _print_figures(report: Report, console: Console) -> None:
    """Gb/s from the machine of a row to that of a column, and the shortest round trips."""
    speeds: dict[tuple[str, str], str] = {}
    trips: dict[tuple[str, str], str] = {}
    for pair in report.pairs:
        a, b = pair.there.source.name, pair.there.target.name
        if gbps := pair.gbps():
            speeds[a, b], speeds[b, a] = (f"{speed:.3g}" for speed in gbps)
        if clock := pair.clock():
            trips[a, b] = trips[b, a] = f"{clock[1] * 1e6:.0f}"
    names = [host.name for host in report.hosts if host.machine]
    for title, cells in (("Gb/s, from row to column", speeds), ("Round trip, us", trips)):
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        for _ in names:
            table.add_column(justify="right", no_wrap=True)
        table.add_row("", *(Text(str(column + 1), "dim") for column in range(len(names))))
        for row, name in enumerate(names):
            values = ("-" if name == other else cells.get((name, other), "") for other in names)
            table.add_row(Text(f"{row + 1} {name}"), *values)
        console.print(Text(title, "bold"))
        console.print(table)
    if report.unmeasured:
        console.print(f"{counted(report.unmeasured, 'pair')} not measured")
