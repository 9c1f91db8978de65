"""`sumpter bench convergence`: its options; the training is done in sumpter_lab.convergence."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sumpter._assignments import parse_assignments
from sumpter._errors import ConfigError
from sumpter._failure import UsageError
from sumpter.cli.options import JsonOption, SetOption
from sumpter_lab.cli.options import CsvOption, FiguresOption
from sumpter_lab.scaffold.results.output import check_writable, write_csv, write_json

if TYPE_CHECKING:
    from sumpter_lab.convergence.spec import Spec

EXAMPLE = (
    "Example: sumpter bench convergence --model digits --codecs int8,topk:k=0.01,momentum=0.9 "
    "--seeds 3 -o losses.json"
)

ModelsOption = Annotated[
    str, typer.Option("--model", metavar="NAME,..", help="What to train: digits, gpt or both.")
]
CodecsOption = Annotated[
    str | None,
    typer.Option(
        "--codecs",
        metavar="CODEC,..",
        help="Codecs as in --set compression (default: bf16, int8, fp8, dithering, powersgd, and "
        "onebit and topk with momentum). Without one trains as well.",
    ),
]
SeedsOption = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, help="Trainings of each codec.")
]
WorkersOption = Annotated[
    int, typer.Option("--workers", "-n", metavar="N", min=2, help="Workers, on this machine.")
]
ServersOption = Annotated[
    int, typer.Option("--servers", "-s", metavar="K", min=0, help="Servers, on this machine.")
]
StepsOption = Annotated[
    int | None,
    typer.Option("--steps", metavar="N", min=2, help="Of a training, instead of the model's own."),
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="A few small steps, to see whether all of it works.")
]


def convergence(
    models: ModelsOption = "digits,gpt",
    codecs: CodecsOption = None,
    seeds: SeedsOption = 3,
    workers: WorkersOption = 2,
    servers: ServersOption = 0,
    steps: StepsOption = None,
    quick: QuickOption = False,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    csv: CsvOption = None,
    output: FiguresOption = None,
) -> None:
    """Compare the losses that training ends with, by codec.

    Trains a convolutional network on digits and a small GPT on Python's source, by processes of
    this machine, with DistributedOptimizer and SGD with Nesterov momentum. With each seed every
    codec starts with the same parameters and sees the same batches. The loss is that of the
    parameters at the end, over what was trained on. Needs no root.
    """
    from sumpter_lab.scaffold.results import record
    from sumpter_lab.scaffold.results.table import head_line, row_line

    asked = _spec(models, codecs, seeds, (workers, servers), steps, quick, assignments)
    check_writable(csv, "--csv")
    check_writable(output, "--output")
    from sumpter_lab.convergence import report

    about = record.environment()
    document: dict[str, Any] = {**about, "asked": asdict(asked)}
    trainings: list[dict[str, Any]] = []
    with closing(_trained(asked)) as trained:
        for one in trained:
            trainings.append(one)
            rows = report.rows(trainings)
            document |= {"trainings": trainings, "rows": rows}
            # Of a run that is cut off, all is there that was trained.
            if csv is not None:
                write_csv(csv, [{**row, **about} for row in rows])
            if output is not None:
                write_json(output, document, indent=1)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    typer.echo(head_line(report.COLUMNS))
    for row in rows:
        typer.echo(row_line(report.COLUMNS, row))
    for training in asked.trainings:
        typer.echo(report.spread_line(trainings, training.model))


def _spec(
    models: str,
    codecs: str | None,
    seeds: int,
    members: tuple[int, int],
    steps: int | None,
    quick: bool,
    assignments: list[str] | None,
) -> Spec:
    from sumpter_lab.convergence.run import check
    from sumpter_lab.convergence.spec import DEFAULT_CODECS, QUICK, TRAININGS, Spec, codecs_of
    from sumpter_lab.scaffold import units
    from sumpter_lab.whatif.codecs import joined

    if quick and steps is not None:
        raise UsageError("--quick and --steps exclude each other")
    known = QUICK if quick else TRAININGS
    trainings = [known[name] for name in units.parse_names(models, "--model", TRAININGS)]
    if steps is not None:
        trainings = [replace(training, steps=steps) for training in trainings]
    if any(training.batch < members[0] for training in trainings):
        least = min(training.batch for training in trainings)
        raise UsageError(f"--workers {members[0]}: a batch has {least} examples; give that at most")
    listed = DEFAULT_CODECS if codecs is None else joined([p.strip() for p in codecs.split(",")])
    try:
        names = codecs_of(listed)
    except ConfigError as error:
        raise UsageError(f"--codecs: {error}") from None
    if any(training.model == "digits" for training in trainings):
        check()
    # As small as they are, the models' matrices are what is compared.
    settings = {"compression_min_bytes": "1KiB", **parse_assignments(assignments)}
    return Spec(tuple(trainings), names, seeds, *members, settings)


def _trained(asked: Spec) -> Generator[dict[str, Any], None, None]:
    """All trainings, with a bar over their steps on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from sumpter_lab.convergence.run import run

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=asked.total_steps)
        # Closed here whatever happens, since closing it ends the processes.
        with closing(run(asked, lambda steps: bar.advance(task, steps))) as trained:
            for one in trained:
                done = f"{one['model']}, {one['codec']}, seed {one['seed']}"
                bar.update(task, description=f"{done}: {one['loss']:.4f}")
                yield one
