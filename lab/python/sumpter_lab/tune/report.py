"""The figures as a table for people, as a file for programs, and as a picture; and of files that
runs have written, with those of one cluster together:

python -m sumpter_lab.tune.report FILE... --plot speed.png
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from sumpter._errors import SumpterError
from sumpter._failure import Failure, UsageError, message_of
from sumpter.tuning.points import readable
from sumpter_lab.replay.report import warnings_of as disturbed
from sumpter_lab.scaffold.results.document import TUNE
from sumpter_lab.scaffold.results.output import check_plot, save_picture
from sumpter_lab.scaffold.results.table import Column, Row, figure, head_line, row_line
from sumpter_lab.tune.figures import Run, row

# Iterations of which the picture shows the median.
_SMOOTHED = 5

COLUMNS = (
    Column("tuner", 9, figure("tuner", "{}")),
    Column("iterations", 10, figure("iterations", "{}")),
    Column("it/s", 7, figure("iterations_per_s", "{:.3f}")),
    Column("over fixed", 10, figure("over_fixed", "{:.3f}")),
    Column("at the end", 10, figure("settled_per_s", "{:.3f}")),
    Column("near best from", 14, figure("near_from", "{}")),
    Column("lost", 6, figure("lost_iterations", "{:.1f}")),
    Column("changes", 7, figure("changes", "{}")),
    Column("partition", 9, lambda row: readable(row["partition_bytes"])),
    Column("credit", 8, lambda row: readable(row["credit_bytes"])),
    Column("core idle", 9, figure("cores_idle", "{:.0%}")),
    Column("steal", 6, figure("cores_steal", "{:.1%}")),
)


def title(run: Run) -> str:
    """What is played, and what happens meanwhile, in a few words."""
    words = f"{run['profile']}, n = {run['workers']}, k = {run['servers']}, sizes / "
    words += f"{run['scale']:g}"
    if run["rates_mbit"]:
        rates = ", ".join(f"{rate:g}" for rate in run["rates_mbit"])
        words += f"; links of {rates} Mb/s in turn (the slowest is grey)"
    if run["second_job"] is not None:
        words += "; a second job (grey)"
    return words


def about(run: Run) -> str:
    """What is played and what its links stand for."""
    return (
        f"{run['profile']}, n={run['workers']}, k={run['servers']}: {run['bytes'] / 1e6:.1f} MB, "
        f"{run['compute_seconds']:.3f} s of compute, {run['optimum_seconds']:.3f} s of "
        f"communication at best; sizes / {run['scale']:g}, times x {run['slowdown']:.3g}, so the "
        f"links stand for {run['stands_for_gbps']:.3g} Gb/s"
    )


def warnings_of(run: Run) -> Iterator[str]:
    """What a reader must know before believing a run."""
    yield from disturbed({**run, "systems": {run["tuner"]: run}})


def write(file: Path, runs: Sequence[Run], rows: Sequence[Row]) -> None:
    """All figures, with every iteration's seconds."""
    TUNE.write(file, runs, rows=rows)


def read(file: Path) -> list[Run]:
    """The runs in a file of `sumpter bench tune --output`."""
    from sumpter_lab.scaffold.results import schema

    return schema.checked(file, "tune", TUNE.read(file))


def speeds(periods_s: Sequence[float]) -> list[float]:
    """Iterations a second around each iteration: medians, since single ones jump."""
    half = _SMOOTHED // 2
    return [
        1 / statistics.median(periods_s[max(0, at - half) : at + half + 1])
        for at in range(len(periods_s))
    ]


def draw(panels: Sequence[tuple[str, Sequence[Run]]], file: Path) -> None:
    """Writes the picture: for each panel a title, and the speed of its runs over time."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 2.6 * len(panels) + 0.4), layout="constrained")
    for axes, (title, runs) in zip(
        picture.subplots(len(panels), squeeze=False).flat, panels, strict=True
    ):
        for run in runs:
            axes.plot(speeds(run["periods_s"]), label=run["tuner"], linewidth=1)
        for first, last in shaded(runs[0]):
            axes.axvspan(first, last, color="0.9", linewidth=0)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("iteration")
        axes.set_ylabel("iterations/s")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", ncols=len(runs), fontsize=8)
    save_picture(picture, file, 80)


def shaded(run: Run) -> Iterator[tuple[int, int]]:
    """Iterations with a second job, or with the slowest links."""
    if run["second_job"] is not None:
        yield tuple(run["second_job"])
    if run["rates_mbit"]:
        rates, every, count = run["rates_mbit"], run["every"], len(run["periods_s"])
        for first in range(0, count, every):
            if rates[first // every % len(rates)] == min(rates):
                yield first, min(first + every, count)


def main() -> None:
    """Prints the tables of files, and draws them."""
    parser = argparse.ArgumentParser(description="Tables and a picture of what tuners did.")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    panels: dict[str, dict[str, Run]] = {}
    try:
        check_plot(given.plot)
        for run in (run for file in given.files for run in read(file)):
            # Of a tuner that ran twice, the first run counts.
            panels.setdefault(title(run), {}).setdefault(run["tuner"], run)
        for name, runs in panels.items():
            print(name, head_line(COLUMNS), sep="\n")
            for run in runs.values():
                print(row_line(COLUMNS, row(run, list(runs.values()))))
        if given.plot is not None:
            draw([(name, list(runs.values())) for name, runs in panels.items()], given.plot)
    except (SumpterError, UsageError, Failure) as error:
        raise SystemExit(f"error: {message_of(error)}") from None


if __name__ == "__main__":
    main()
