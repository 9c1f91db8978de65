"""`sumpter bench tune`: its options; the measuring is done in sumpter_lab.tune."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sumpter._assignments import parse_assignments
from sumpter._failure import UsageError
from sumpter.cli.options import SetOption
from sumpter_lab.cli.profile import ProfileOption
from sumpter_lab.cli.replay import (
    DEFAULT_NETWORK_GBPS,
    BandwidthOption,
    BatchOption,
    FormatOption,
    IterationOption,
    NetworkOption,
    OutputOption,
    ScaleOption,
    profile_of,
)
from sumpter_lab.scaffold.network.namespaces import check_tools

if TYPE_CHECKING:
    from sumpter_lab.tune.spec import Spec

EXAMPLE = (
    "Example: sumpter bench tune --profile resnet50 -n 4 -s 2 --ratio 1 --scale 16 "
    "--tuner fixed,grid,bayes -o tuners.json"
)

WorkersOption = Annotated[
    int, typer.Option("--workers", "-n", metavar="N", min=2, help="GPU machines.")
]
ServersOption = Annotated[
    int, typer.Option("--servers", "-s", metavar="K", min=0, help="CPU machines.")
]
RatioOption = Annotated[
    float | None,
    typer.Option(
        "--ratio",
        metavar="R",
        help="Multiply all times so that communication without CPU machines takes R times as long "
        "as compute, instead of --network-gbps.",
    ),
]
TunerOption = Annotated[
    str,
    typer.Option(
        "--tuner", metavar="NAME,..", help="Tuners, each of which plays all the iterations."
    ),
]
IterationsOption = Annotated[
    int, typer.Option("--iterations", metavar="N", min=20, help="Iterations of each tuner.")
]
SwitchOption = Annotated[
    str | None,
    typer.Option(
        "--switch", metavar="B,..", help="Give all links these rates in turn, in Mb/s, as it runs."
    ),
]
EveryOption = Annotated[
    int, typer.Option("--every", metavar="N", min=1, help="Iterations of each rate of --switch.")
]
SecondJobOption = Annotated[
    str | None,
    typer.Option(
        "--second-job",
        metavar="FROM:TO",
        help="Between these iterations a second job plays the same on the same machines.",
    ),
]
ProfiledOption = Annotated[
    bool,
    typer.Option("--profiled", help="Tell the tuner the times of the profile's layers."),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Draw speed over time; .png, .svg or .pdf decides how."
    ),
]


def tune(
    profile: ProfileOption,
    file_format: FormatOption = "sumpter",
    iteration_s: IterationOption = None,
    batch_size: BatchOption = None,
    workers: WorkersOption = 4,
    servers: ServersOption = 0,
    bandwidth_mbps: BandwidthOption = 200.0,
    scale: ScaleOption = 20.0,
    network_gbps: NetworkOption = None,
    ratio: RatioOption = None,
    tuners: TunerOption = "fixed,grid,bayes,autobyte",
    iterations: IterationsOption = 350,
    switch: SwitchOption = None,
    every: EveryOption = 20,
    second_job: SecondJobOption = None,
    profiled: ProfiledOption = False,
    assignments: SetOption = None,
    output: OutputOption = None,
    plot: PlotOption = None,
) -> None:
    """Let tuners work on a job that replays a profile on an emulated cluster.

    The job plays as in `sumpter bench replay`, with the next forward pass beginning early; each
    tuner starts anew with the job's first sizes and chooses them live. Shows how soon it is within
    2 % of the grid's best, if `grid` is one of them, and what the search cost. Needs root and
    Linux.
    """
    from sumpter_lab.replay import spec as replay
    from sumpter_lab.scaffold import units
    from sumpter_lab.scaffold.results.output import check_plot, check_writable
    from sumpter_lab.tune.spec import SYSTEM, Spec

    if network_gbps is not None and ratio is not None:
        raise UsageError("--network-gbps and --ratio exclude each other")
    if network_gbps is None and ratio is None:
        network_gbps = DEFAULT_NETWORK_GBPS
    check_writable(output, "--output")
    check_plot(plot)
    job = replay.Spec(
        profile=profile_of(profile, file_format, iteration_s, batch_size),
        workers=[workers],
        servers=[servers],
        bandwidth_mbps=units.check_rate(bandwidth_mbps, "--bandwidth-mbps"),
        scale=scale,
        network_gbps=network_gbps,
        ratios=[] if ratio is None else [ratio],
        systems=(SYSTEM,),
        iterations=iterations,
        turns=1,
        settings=parse_assignments(assignments),
    )
    names = (part.strip() for part in tuners.split(","))
    asked = Spec(
        job=job,
        tuners=tuple(dict.fromkeys(name for name in names if name)),
        rates_mbit=tuple(units.parse_rates(switch, "--switch")) if switch is not None else (),
        every=every,
        second_job=_between(second_job) if second_job is not None else None,
        profiled=profiled,
    )
    check_tools()
    _tune(asked, output, plot)


def _tune(asked: Spec, output: Path | None, plot: Path | None) -> None:
    """Runs all tuners; the table comes when all are done, since it compares them."""
    from sumpter_lab.scaffold.progress import Bar
    from sumpter_lab.scaffold.results.table import head_line, row_line
    from sumpter_lab.tune import report
    from sumpter_lab.tune.figures import row
    from sumpter_lab.tune.run import run

    runs: list[dict[str, Any]] = []
    # Closed here whatever happens, since closing it removes the cluster.
    with Bar() as bar, contextlib.closing(run(asked, bar)) as measured:
        for one in measured:
            if not runs:
                bar.note(report.about(one))
            for warning in report.warnings_of(one):
                bar.note(f"{one['tuner']}: {warning}", "yellow")
            runs.append(one)
            rows = [row(each, runs) for each in runs]
            if output is not None:
                report.write(output, runs, rows)
    typer.echo(head_line(report.COLUMNS))
    for line in rows:
        typer.echo(row_line(report.COLUMNS, line))
    if plot is not None:
        report.draw([(report.title(runs[0]), runs)], plot)


def _between(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit()):
        raise UsageError(f"--second-job {text}: give two iterations, such as 60:120")
    return int(first), int(last)
