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

EXAMPLE = "Example: sumpter plan --workers 32 --servers 16 --bytes 1GiB --bandwidth-gbps 25"


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
    machines: Annotated[
        Path | None,
        typer.Option(
            "--machines",
            metavar="FILE.toml",
            help="Machines of different bandwidths: a list of [[machine]] with role "
            '("gpu" or "cpu"), bandwidth_gbps and, if you like, name and count.',
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="RULE",
            help="Also the memory of an optimizer, in workers and on servers: "
            + ", ".join(sorted(_native.update_rules()))
            + ".",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who should sum how much, how long it takes, and the gain over other ways."""
    if workers is None and machines is None:
        raise UsageError("give --workers N (and --servers K), or --machines FILE.toml")
    if machines is not None and bandwidth_gbps is not None:
        raise UsageError("--bandwidth-gbps and --machines exclude each other: the list has its own")
    given = {
        "workers": workers,
        "servers": servers,
        "bytes": None if size is None else parse_size(size, "--bytes"),
        "bandwidth_gbps": bandwidth_gbps,
        "machines": None if machines is None else _read(machines),
        "rule": rule,
    }
    report = _report({name: value for name, value in given.items() if value is not None})
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)


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


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console, Group
    from rich.text import Text

    parts = [Text(_headline(report), style="bold"), "", _shares(report), "", _times(report)]
    if "optimizer" in report:
        parts += ["", _optimizer(report["optimizer"])]
    parts += ["", *(Text(note, style="yellow") for note in report["notes"])]
    Console(highlight=False).print(Group(*(parts if report["notes"] else parts[:-1])))


def _optimizer(found: dict[str, Any]) -> Any:
    from rich.table import Table

    from sumpter.launch.figures import format_bytes

    title = f"memory of {found['rule']}"
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(title, no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    rows = [
        ("state in every worker, as without on_servers", found["worker_bytes"]),
        ("on servers: mirror in every worker", found["mirror_bytes"]),
        ("on servers: lane of a GPU machine", found["lane_bytes_gpu"]),
        ("on servers: lanes of a CPU machine", found["lane_bytes_cpu"]),
        ("mirrors on each link, in a step", found["mirror_link_bytes"]),
        ("the same in asynchronous training, at most", found["asynchronous_mirror_link_bytes"]),
    ]
    for name, size in rows:
        if size is not None:
            table.add_row(name, format_bytes(size))
    return table


def _headline(report: dict[str, Any]) -> str:
    from sumpter.launch.figures import format_bytes

    machines = f"{_count(report['workers'], 'GPU')}, {_count(report['servers'], 'CPU')}"
    bandwidth = report["bandwidth_gbps"]
    links = "links as listed" if bandwidth is None else f"{bandwidth:g} Gb/s each way"
    return f"{machines}, {links}, {format_bytes(report['bytes'])} of gradients"


def _count(number: int, kind: str) -> str:
    return f"{number} {kind} machine{'' if number == 1 else 's'}"


def _shares(report: dict[str, Any]) -> Any:
    from rich.table import Table

    from sumpter.launch.figures import format_bytes

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("machine", no_wrap=True)
    for name in ("link", "share of M", "sums", "link carries each way"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, bandwidth, share, link_bytes in _rows(report):
        sums, carries = format_bytes(share * report["bytes"]), format_bytes(link_bytes)
        table.add_row(name, f"{bandwidth:g} Gb/s", f"{share:.3%}", sums, carries)
    return table


def _rows(report: dict[str, Any]) -> list[tuple[str, float, float, float]]:
    listed = report.get("machines")
    if listed is not None:
        return [
            (f"{row['name']} ({row['role']})",)
            + (row["bandwidth_gbps"], row["share"], row["link_bytes"])
            for row in listed
        ]
    roles = [("gpu", "GPU", report["workers"]), ("cpu", "CPU", report["servers"])]
    return [
        (f"{'each of ' if count > 1 else ''}{_count(count, kind)}", report["bandwidth_gbps"])
        + (report[f"share_{role}"], report[f"link_bytes_{role}"])
        for role, kind, count in roles
        if count
    ]


def _times(report: dict[str, Any]) -> Any:
    from rich.table import Table

    from sumpter.launch.figures import format_seconds

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("way", no_wrap=True)
    table.add_column("time of a round", justify="right", no_wrap=True)
    table.add_column("gain of this plan", justify="right", no_wrap=True)
    rows = [
        ("this plan", report["time_s"], None),
        ("all-reduce", report["allreduce_time_s"], report["gain_over_allreduce"]),
        ("parameter server on the CPU machines", report["ps_time_s"], report["gain_over_ps"]),
    ]
    for way, time_s, gain in rows:
        if time_s is not None:
            table.add_row(
                way,
                format_seconds(time_s) if time_s else "none",
                "" if gain is None else f"{gain:.3f} x",
            )
    return table
