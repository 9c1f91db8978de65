"""`sumpter bench regret`: its options; the evaluation is in sumpter_lab.regret."""

from __future__ import annotations

from typing import Annotated

import typer

from sumpter._failure import UsageError
from sumpter.cli.options import JsonOption
from sumpter_lab.cli.options import FiguresOption
from sumpter_lab.scaffold.results.output import check_writable, write_json

EXAMPLE = "Example: sumpter bench regret --models resnet50 --workers 4 -o regret.json"
MODELS = "alexnet,bert-large,gpt2,resnet50,vgg16"
MOST_WORKERS = 1024

ModelsOption = Annotated[
    str, typer.Option("--models", metavar="NAME,..", help="Published architectures.")
]
WorkersOption = Annotated[
    str, typer.Option("--workers", "-n", metavar="N,..", help="Numbers of GPU machines.")
]
SharesOption = Annotated[
    str,
    typer.Option(
        "--server-shares", metavar="R,..", help="Numbers of CPU machines, as parts of N: 0 to 1."
    ),
]
BandwidthOption = Annotated[
    str, typer.Option("--bandwidth-gbps", metavar="B,..", help="Bandwidths of all links.")
]
TunersOption = Annotated[
    str, typer.Option("--tuner", metavar="NAME,..", help="Tuners; bayes takes longest.")
]
IterationsOption = Annotated[
    int, typer.Option("--iterations", metavar="I", min=12, help="Iterations of each tuner.")
]
SwitchOption = Annotated[
    float | None,
    typer.Option(
        "--switch", metavar="B", help="Change every bandwidth to this one and back as it runs."
    ),
]
EveryOption = Annotated[
    int, typer.Option("--every", metavar="I", min=1, help="Iterations of each rate of --switch.")
]
ChangeOption = Annotated[
    float,
    typer.Option("--change-s", metavar="S", min=0.0, help="Seconds that a change of sizes costs."),
]


def regret(
    models: ModelsOption = MODELS,
    workers: WorkersOption = "2,4,8,16",
    shares: SharesOption = "0,0.5,1",
    bandwidth_gbps: BandwidthOption = "1,3,10,25,100",
    tuners: TunersOption = "fixed,grid,autobyte",
    iterations: IterationsOption = 300,
    switch: SwitchOption = None,
    every: EveryOption = 50,
    change_s: ChangeOption = 0.02,
    as_json: JsonOption = False,
    output: FiguresOption = None,
) -> None:
    """Evaluate tuners by regret against the best sizes, in virtual time at full size.

    Iterations are simulated as in `sumpter whatif`. The best is that of 39 pairs of partition and
    credit from 16 KiB and 128 KiB to 4 MiB, and of the default sizes. Regret is the time of all
    iterations over that of as many of the best, less one; `settled` is that of the last sizes.
    """
    from rich.progress import track

    from sumpter_lab import profiles
    from sumpter_lab.regret import report
    from sumpter_lab.regret.run import Spec, cells, run
    from sumpter_lab.scaffold.results import record
    from sumpter_lab.scaffold.results.table import head_line, row_line

    names = _parts(models)
    for name in names:
        if name not in profiles.NAMES:
            raise UsageError(f"--models {name}: give some of {', '.join(profiles.NAMES)}")
    check_writable(output, "--output")
    asked = Spec(
        cells=cells(
            names,
            [_number(text, "--workers", 2, MOST_WORKERS, whole=True) for text in _parts(workers)],
            [_number(text, "--server-shares", 0, 1) for text in _parts(shares)],
            [_number(text, "--bandwidth-gbps", 0.001, 10_000) for text in _parts(bandwidth_gbps)],
            switch,
        ),
        tuners=tuple(_parts(tuners)),
        iterations=iterations,
        every=every if switch is not None else 0,
        change_s=change_s,
    )
    _check_tuners(asked.tuners)
    played = []
    total = len(asked.cells)
    for one in track(run(asked), f"{total} cells", total, console=_console(), transient=True):
        played += one
    played.sort(key=lambda one: (asked.cells.index(one.cell), one.tuner))
    rows = report.rows(played)
    document = {
        **record.environment(),
        "iterations": iterations,
        "every": asked.every,
        "change_s": change_s,
        "rows": rows,
        "played": [report.described(one) for one in played],
    }
    if output is not None:
        write_json(output, document, indent=1)
    if as_json:
        import json

        typer.echo(json.dumps(document, indent=1))
        return
    typer.echo(head_line(report.COLUMNS))
    for row in rows:
        typer.echo(row_line(report.COLUMNS, row))


def _console():
    from rich.console import Console

    return Console(stderr=True)


def _parts(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _number(text: str, option: str, least: float, most: float, *, whole: bool = False):
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"{option} {text}: give {kind} from {least:g} to {most:g}")
    return value


def _check_tuners(names: tuple[str, ...]) -> None:
    from sumpter.tuning.tuners import make

    if not names:
        raise UsageError("--tuner: give at least one")
    for name in names:
        make(name)
