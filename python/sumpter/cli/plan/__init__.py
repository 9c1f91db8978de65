"""`sumpter plan`: what a cluster would give, before it is bought. The figures come from Rust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sumpter import _native
from sumpter._failure import Failure, UsageError
from sumpter._sizes import parse_size
from sumpter.cli.options import JsonOption
from sumpter.cli.plan import tables, topology
from sumpter.cli.printing import print_parts

EXAMPLE = "Example: sumpter plan --workers 32 --servers 16 --bytes 1GiB --bandwidth-gbps 25"

MachinesOption = Annotated[
    Path | None,
    typer.Option(
        "--machines",
        metavar="FILE.toml",
        help='A list of [[machine]] with role ("gpu" or "cpu") and bandwidth_gbps or nics; '
        "if you like with name, count, devices, and [[rack]] with trunk_gbps.",
    ),
]
RuleOption = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="RULE",
        help="Also the memory of an optimizer, in workers and on servers: "
        + ", ".join(sorted(_native.update_rules()))
        + ".",
    ),
]
ComputeOption = Annotated[
    float | None,
    typer.Option(
        "--compute-s",
        metavar="SECONDS",
        help="Also the bandwidth that hides communication behind this time of computing.",
    ),
]
PricesOption = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        metavar="FILE.toml",
        help="Also the throughput for the price of more machines and of faster links; "
        "needs --compute-s.",
    ),
]


def plan(
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-n", metavar="N", help="GPU machines (not GPUs)."),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option("--servers", "-s", metavar="K", help="CPU machines that help (default: 0)."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--bytes", metavar="SIZE", help="Gradients of the model (default: 1GiB)."),
    ] = None,
    bandwidth_gbps: Annotated[
        float | None,
        typer.Option(
            "--bandwidth-gbps",
            metavar="G",
            help="Each machine's link, each way (default: 100).",
        ),
    ] = None,
    machines: MachinesOption = None,
    rule: RuleOption = None,
    compute_s: ComputeOption = None,
    prices: PricesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who should sum how much, how long it takes, and the gain over other ways."""
    if workers is None and machines is None:
        raise UsageError("give --workers N (and --servers K), or --machines FILE.toml")
    if machines is not None and bandwidth_gbps is not None:
        raise UsageError("--bandwidth-gbps and --machines exclude each other: the list has its own")
    if prices is not None and compute_s is None:
        raise UsageError("--prices needs --compute-s: throughput depends on the time of computing")
    given = {
        "workers": workers,
        "servers": servers,
        "bytes": None if size is None else parse_size(size, "--bytes"),
        "bandwidth_gbps": bandwidth_gbps,
        "machines": None if machines is None else _read(machines),
        "rule": rule,
        "compute_s": compute_s,
        "prices": None if prices is None else _read(prices),
    }
    report = _report({name: value for name, value in given.items() if value is not None})
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report, compute_s)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"cannot read {file}: not a text file") from error


def _report(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(_native.plan(json.dumps(request)))
    except _native.SumpterError as error:
        raise UsageError(str(error)) from error


def _print(report: dict[str, Any], compute_s: float | None) -> None:
    from rich.text import Text

    parts: list[Any] = [[Text(_headline(report), style="bold")], [tables.shares(report)]]
    if "trees" in report:
        trees = report["trees"]
        parts += [[topology.racks(trees)], [topology.parts(trees)]]
    parts.append([tables.times(report)])
    if "trees" in report:
        parts.append([topology.decision(report["trees"]["phub"])])
    parts += [topology.inside(found) for found in report.get("inside", ())]
    if compute_s is not None:
        parts.append([tables.bandwidth(report, compute_s)])
    if "offers" in report:
        parts.append([tables.offers(report["offers"])])
    if "optimizer" in report:
        parts.append([tables.optimizer(report["optimizer"])])
    if report["notes"]:
        parts.append([Text(note, style="yellow") for note in report["notes"]])
    lines = [line for part in parts for line in ("", *part)]
    print_parts(lines[1:])


def _headline(report: dict[str, Any]) -> str:
    from sumpter.launch.figures import format_bytes

    machines = f"{tables.count(report['workers'], 'GPU')}, {tables.count(report['servers'], 'CPU')}"
    bandwidth = report["bandwidth_gbps"]
    links = "links as listed" if bandwidth is None else f"{bandwidth:g} Gb/s each way"
    return f"{machines}, {links}, {format_bytes(report['bytes'])} of gradients"
