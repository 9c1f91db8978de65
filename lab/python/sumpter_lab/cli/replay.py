"""`sumpter bench replay`: its options; the measuring is done in sumpter_lab.replay."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sumpter._assignments import parse_assignments
from sumpter._failure import UsageError
from sumpter.cli.options import SetOption
from sumpter_lab.cli.options import RulesOption, ServersOption, WorkersOption
from sumpter_lab.cli.profile import ProfileOption, published
from sumpter_lab.scaffold.network.namespaces import check_tools

if TYPE_CHECKING:
    from sumpter.profiles import Profile
    from sumpter_lab.replay.spec import Spec

EXAMPLE = "Example: sumpter bench replay --profile resnet50 --workers 4 --servers 0,2"
# 10 Gb/s stood for by links that two cores can emulate.
DEFAULT_NETWORK_GBPS = 10.0

FormatOption = Annotated[
    str, typer.Option("--format", metavar="NAME", help="Of the file: sumpter or netai.")
]
IterationOption = Annotated[
    float | None,
    typer.Option(
        "--iteration-s", metavar="S", help="An iteration's seconds, which a NetAI log does not say."
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option("--batch-size", metavar="N", help="Of a published architecture or a NetAI log."),
]
BandwidthOption = Annotated[
    float,
    typer.Option("--bandwidth-mbps", metavar="B", help="Rate of each emulated link, in Mb/s."),
]
ScaleOption = Annotated[
    float,
    typer.Option(
        "--scale",
        metavar="S",
        help="Divide all sizes by this: tensors, partitions, chunks and credit.",
    ),
]
NetworkOption = Annotated[
    float | None,
    typer.Option(
        "--network-gbps",
        metavar="B",
        help="Multiply all times so that the links stand for this rate (default: 10).",
    ),
]
RatioOption = Annotated[
    str | None,
    typer.Option(
        "--ratio",
        metavar="R,..",
        help="Multiply all times so that communication without CPU machines takes R times as long "
        "as compute, instead of --network-gbps.",
    ),
]
GridOption = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="NAME=V,..",
        help="Measure with each of these values of a setting, such as partition_bytes=128KiB,1MiB, "
        "taken as they are, like those of --set; may be repeated, for all combinations.",
    ),
]
SchedulingOption = Annotated[
    str,
    typer.Option(
        "--scheduling",
        metavar="NAME,..",
        help="off (order of readiness), paced (and little ahead of what is sent: a job's default), "
        "priority (order of the next forward pass), credit (and little ahead of what is sent), "
        "overlap (and the next forward pass begins with the layers whose sums are there).",
    ),
]
PeersOption = Annotated[
    str,
    typer.Option(
        "--peers",
        metavar="NAME,..",
        help="What to measure beside: ddp-gloo (torch's DDP with the same timed compute), none.",
    ),
]
IterationsOption = Annotated[
    int,
    typer.Option("--iterations", metavar="N", min=1, help="Iterations that count in each turn."),
]
TurnsOption = Annotated[
    int, typer.Option("--turns", metavar="N", min=1, help="Turns of each system, interleaved.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Also write all figures, with those of each iteration, as JSON.",
    ),
]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="With --grid over partition_bytes and credit_bytes: draw the share of the bound by "
        "both; .png, .svg or .pdf decides how.",
    ),
]


def replay(
    profile: ProfileOption,
    file_format: FormatOption = "sumpter",
    iteration_s: IterationOption = None,
    batch_size: BatchOption = None,
    workers: WorkersOption = "4",
    servers: ServersOption = "0",
    bandwidth_mbps: BandwidthOption = 200.0,
    scale: ScaleOption = 20.0,
    network_gbps: NetworkOption = None,
    ratios: RatioOption = None,
    scheduling: SchedulingOption = "off,paced,priority,credit,overlap",
    peers: PeersOption = "ddp-gloo",
    rules: RulesOption = None,
    iterations: IterationsOption = 10,
    turns: TurnsOption = 3,
    assignments: SetOption = None,
    grid: GridOption = None,
    output: OutputOption = None,
    plot: PlotOption = None,
) -> None:
    """Play a profile's compute as timed waits beside real sums on an emulated cluster.

    Each machine is a network namespace with a shaped link, so this needs root and Linux. Compares
    ways to schedule with each other, with DDP over Gloo and with the upper bound: one iteration
    in the time of its compute, or of its communication at best, whichever is longer. With --rules
    also iterations that end with an optimizer's step, in the workers or on the servers.
    """
    from sumpter_lab.replay.spec import Spec
    from sumpter_lab.replay.surface import AXES, draw, of_cells
    from sumpter_lab.replay.variants import optimizing
    from sumpter_lab.scaffold import spec, units
    from sumpter_lab.scaffold.results.output import check_plot, check_writable

    if network_gbps is not None and ratios is not None:
        raise UsageError("--network-gbps and --ratio exclude each other")
    if network_gbps is None and ratios is None:
        network_gbps = DEFAULT_NETWORK_GBPS
    check_writable(output, "--output")
    check_plot(plot)
    values = _grid(grid or [])
    if plot is not None and not set(AXES) <= set(values):
        raise UsageError(f"--plot draws speed by {' and '.join(AXES)}: give --grid for both")
    asked = Spec(
        profile=profile_of(profile, file_format, iteration_s, batch_size),
        workers=units.parse_counts(workers, "--workers", 1),
        servers=units.parse_counts(servers, "--servers", 0),
        bandwidth_mbps=units.check_rate(bandwidth_mbps, "--bandwidth-mbps"),
        scale=scale,
        network_gbps=network_gbps,
        ratios=_numbers(ratios, "--ratio"),
        systems=(
            *_names(scheduling),
            *optimizing(units.parse_names(rules, "--rules", spec.RULES)),
            *_names(peers),
        ),
        iterations=iterations,
        turns=turns,
        settings=parse_assignments(assignments),
        grid=values,
    )
    check_tools()
    cells = _replay(asked, output)
    if plot is not None:
        draw(of_cells(cells), plot)


def _replay(asked: Spec, output: Path | None) -> list[dict[str, Any]]:
    """Runs all cells; rows are shown as they come, and the file has all that are done."""
    from sumpter_lab.replay import report
    from sumpter_lab.replay.run import run
    from sumpter_lab.scaffold.progress import Bar
    from sumpter_lab.scaffold.results.table import head_line, row_line

    cells: list[dict[str, Any]] = []
    # Closed here whatever happens, since closing it removes the cluster.
    with Bar() as bar, contextlib.closing(run(asked, bar)) as measured:
        for cell in measured:
            bar.note(report.about(cell))
            if not cells:
                typer.echo(head_line(report.COLUMNS))
            for row in report.lines_of(cell):
                typer.echo(row_line(report.COLUMNS, row))
            for warning in report.warnings_of(cell):
                bar.note(warning, "yellow")
            cells.append(cell)
            if output is not None:
                report.write(output, cells)
    return cells


def profile_of(
    text: str, file_format: str, iteration_s: float | None, batch_size: int | None
) -> Profile:
    """A profile by file or by name."""
    from sumpter_lab import profiles

    named = published(text, batch_size)
    if named is None:
        return profiles.load(text, file_format, iteration_s=iteration_s, batch_size=batch_size)
    if iteration_s is not None:
        raise UsageError(f"--iteration-s: the times of {text} are computed")
    return named


def _numbers(text: str | None, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise UsageError(f"{option} {text}: give numbers with commas between them") from None


def _grid(texts: list[str]) -> dict[str, list[str]]:
    """The values of each setting; the receiver checks names and values."""
    values = parse_assignments(texts, "--grid").items()
    return {name: [part.strip() for part in text.split(",")] for name, text in values}


def _names(text: str) -> tuple[str, ...]:
    names = (part.strip() for part in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name not in ("", "none")))
