"""Options that several commands of the laboratory share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WorkersOption = Annotated[
    str, typer.Option("--workers", "-n", metavar="N,..", help="Numbers of GPU machines.")
]
ServersOption = Annotated[
    str, typer.Option("--servers", "-s", metavar="K,..", help="Numbers of CPU machines.")
]
RateOption = Annotated[
    float, typer.Option("--rate-mbit", metavar="B", help="Rate of each link, each way, in Mb/s.")
]
RulesOption = Annotated[
    str | None,
    typer.Option(
        "--rules",
        metavar="NAME,..",
        help="Also measure rounds that update parameters, such as sgd,sgd_nesterov,adam.",
    ),
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Also write the rows to a CSV file.")
]
FiguresOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write all figures as JSON.")
]
AddEstimateOption = Annotated[
    Path | None,
    typer.Option(
        "--add-estimate",
        metavar="FILE",
        help="Lines of `bytes,seconds` of an addition, instead of the profile's.",
    ),
]
