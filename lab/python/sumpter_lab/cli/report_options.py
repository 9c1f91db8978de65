"""The options of `sumpter report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MOST_MACHINES = 5_000

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Profiles (`sumpter record`), traces (`sumpter trace`), CSV or JSON of `sumpter "
        "bench`, in any order; what a file is, is seen from its content.",
    ),
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where the page goes.")
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        "-n",
        metavar="N",
        min=1,
        max=_MOST_MACHINES,
        help="What-if: GPU machines (not GPUs).",
    ),
]
BandwidthOption = Annotated[
    float | None,
    typer.Option(
        "--bandwidth-gbps",
        metavar="G",
        help="Each machine's link, each way (what-if: 10 unless given). Given, it also judges the "
        "links of a trace.",
    ),
]
ServersOption = Annotated[
    int,
    typer.Option(
        "--servers",
        "-s",
        metavar="K",
        min=0,
        max=_MOST_MACHINES,
        help="What-if: CPU machines that help.",
    ),
]
CompressionOption = Annotated[
    float, typer.Option("--compression", metavar="C", help="What-if: divides the bytes sent.")
]
EfficiencyOption = Annotated[
    float,
    typer.Option(
        "--transport-efficiency", metavar="E", help="What-if: part of the bandwidth that is used."
    ),
]
StepOption = Annotated[
    int | None,
    typer.Option("--step", metavar="S", help="Of a trace; its last one unless given."),
]
BatchTimeOption = Annotated[
    float | None,
    typer.Option(
        "--batch-time-s",
        metavar="T",
        help="An iteration without communication: a log of the NetAI scripts needs it.",
    ),
]
TitleOption = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Of the page.")]
