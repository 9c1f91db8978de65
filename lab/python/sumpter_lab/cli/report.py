"""`sumpter report`: one page about a run, from what other commands have written."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import typer

from sumpter._failure import UsageError
from sumpter_lab.cli import single
from sumpter_lab.cli.options import AddEstimateOption
from sumpter_lab.cli.report_options import (
    BandwidthOption,
    BatchTimeOption,
    CompressionOption,
    EfficiencyOption,
    FilesArgument,
    OutputOption,
    ServersOption,
    StepOption,
    TitleOption,
    WorkersOption,
)

EXAMPLE = (
    "Example: sumpter report run.profile.json bench.csv -n 16 --bandwidth-gbps 25 -o report.html"
)

# When the first word on progress comes, and how often there is another.
_FIRST_S, _TERMINAL_S, _LOG_S = 1.0, 0.2, 5.0
# To the beginning of the line, and all of it away.
_CLEAR = "\r\x1b[K"


def report(
    files: FilesArgument,
    output: OutputOption = Path("report.html"),
    workers: WorkersOption = 64,
    bandwidth_gbps: BandwidthOption = None,
    servers: ServersOption = 0,
    compression: CompressionOption = 1.0,
    transport_efficiency: EfficiencyOption = 1.0,
    step: StepOption = None,
    add_estimate: AddEstimateOption = None,
    batch_time_s: BatchTimeOption = None,
    title: TitleOption = None,
) -> None:
    """Make one page of HTML about a run: timeline, share of the optimum, what-if, advice.

    The page is complete and opens without a network. `docs/user/report.md` shows one.
    """
    from sumpter_lab import report as reports
    from sumpter_lab.scaffold.results.output import check_writable

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
    page = reports.make(files, question, title, _Progress())
    reports.write(page, output)
    for section in page.sections:
        typer.echo(f"{section.source}: {section.title}")
    typer.echo(f"wrote {output} ({len(page.html.encode()) / 1e6:.1f} MB)")


class _Progress:
    """Says on standard error how far a report is, once it has taken longer than a blink: in place
    on a terminal, else now and then a line."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _FIRST_S
        self._pause_s = _TERMINAL_S if sys.stderr.isatty() else _LOG_S
        self._shown = False

    def __call__(self, name: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if done == total and self._shown and sys.stderr.isatty():
            typer.echo(_CLEAR, err=True, nl=False)
            return
        if now_s < self._next_s or done == total:
            return
        self._next_s, self._shown = now_s + self._pause_s, True
        text = f"{name}: {done} of {total} what-if cases simulated"
        if sys.stderr.isatty():
            typer.echo(_CLEAR + text, err=True, nl=False)
        else:
            typer.echo(text, err=True)


app = single(report, EXAMPLE)
