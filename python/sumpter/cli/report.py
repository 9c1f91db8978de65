"""`sumpter report`: one page about a run, from what other commands have written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from sumpter.cli.errors import UsageError

EXAMPLE = "Example: sumpter report run.profile.json bench.csv -n 16 --bandwidth-gbps 25 -o r.html"
_MOST_MACHINES = 5_000


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Profiles (`sumpter record`), traces (`sumpter trace`), CSV or JSON of `sumpter "
            "bench`, in any order; what a file is, is seen from its content.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the page goes.")
    ] = Path("report.html"),
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            "-n",
            metavar="N",
            min=1,
            max=_MOST_MACHINES,
            help="What-if: GPU machines (not GPUs).",
        ),
    ] = 64,
    bandwidth_gbps: Annotated[
        float | None,
        typer.Option(
            "--bandwidth-gbps",
            metavar="G",
            help="Each machine's link, each way. What-if: 10 unless given. Given, it also judges "
            "the links of a trace.",
            show_default=False,
        ),
    ] = None,
    servers: Annotated[
        int,
        typer.Option(
            "--servers",
            "-s",
            metavar="K",
            min=0,
            max=_MOST_MACHINES,
            help="What-if: CPU machines that help.",
        ),
    ] = 0,
    compression: Annotated[
        float, typer.Option("--compression", metavar="C", help="What-if: divides the bytes sent.")
    ] = 1.0,
    transport_efficiency: Annotated[
        float,
        typer.Option(
            "--transport-efficiency", metavar="E", help="What-if: part of the bandwidth used."
        ),
    ] = 1.0,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", metavar="S", help="Of a trace: its last one unless given.", show_default=False
        ),
    ] = None,
    add_estimate: Annotated[
        Path | None,
        typer.Option(
            "--add-estimate",
            metavar="FILE",
            help="Lines of `bytes,seconds` of an addition, instead of the profile's.",
        ),
    ] = None,
    batch_time_s: Annotated[
        float | None,
        typer.Option(
            "--batch-time-s",
            metavar="T",
            help="An iteration without communication: a log of the NetAI scripts needs it.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Of the page.")] = (
        None
    ),
) -> None:
    """Make one page of HTML about a run: timeline, share of the optimum, what-if, advice.

    The page is complete and opens without a network. `docs/report.md` shows one.
    """
    from sumpter import report as reports
    from sumpter.bench.report import check_writable

    positive = {
        "--bandwidth-gbps": bandwidth_gbps,
        "--compression": compression,
        "--transport-efficiency": transport_efficiency,
        "--batch-time-s": batch_time_s,
    }
    for option, value in positive.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{option} {value:g}: expected a number above 0")
    check_writable(output, "--output")
    for file in files:
        if file.exists() and output.exists() and file.samefile(output):
            raise UsageError(f"--output {output}: this is a file to be read; name another")
    question = reports.Question(
        workers=workers,
        servers=servers,
        bandwidth_gbps=bandwidth_gbps,
        compression=compression,
        transport_efficiency=transport_efficiency,
        step=step,
        batch_time_s=batch_time_s,
        add_estimate=add_estimate,
    )
    page = reports.make(files, question, title)
    reports.write(page, output)
    for section in page.sections:
        typer.echo(f"{section.source}: {section.title}")
    typer.echo(f"wrote {output} ({len(page.html.encode()) / 1e6:.1f} MB)")
