"""`sumpter bench scale`: its options; the work is done in sumpter_lab.scale."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sumpter.cli.options import JsonOption
from sumpter_lab.cli.options import CsvOption, FiguresOption
from sumpter_lab.scaffold.results.output import check_writable, write_csv
from sumpter_lab.scaffold.results.table import Row, head_line, row_line

EXAMPLE = "Example: sumpter bench scale --members 64,256,1024,2048 -o scale.json"

Members = Annotated[
    str, typer.Option("--members", "-n", metavar="N,..", help="Numbers of workers of the job.")
]
Servers = Annotated[
    int, typer.Option("--servers", "-s", metavar="K", min=2, help="Servers of the job.")
]
Lanes = Annotated[
    int, typer.Option("--lanes", metavar="N", min=1, max=1024, help="Lanes of each server.")
]
Tensors = Annotated[int, typer.Option("--tensors", metavar="N", min=1, help="Tensors of the job.")]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", min=0.1, help="Heartbeats of each kind last.")
]
PeerTimeout = Annotated[
    float,
    typer.Option(
        "--peer-timeout",
        metavar="S",
        min=0.05,
        help="Silence after which a member counts as dead; heartbeats come four times as often.",
    ),
]


def scale(
    members: Members = "64,256,1024,2048",
    servers: Servers = 64,
    lanes: Lanes = 32,
    tensors: Tensors = 1000,
    seconds: Seconds = 15.0,
    peer_timeout: PeerTimeout = 4.0,
    as_json: JsonOption = False,
    csv: CsvOption = None,
    output: FiguresOption = None,
) -> None:
    """Measure what membership costs with thousands of members: a real coordinator, no training.

    The members are threads of this process on loopback; the coordinator is a process of its own,
    whose processor time and memory are shown. Columns: time to join; memory of the coordinator for
    each member; share of a core that heartbeats take, without tensors, in training, and while all
    ranks wait for one; time until all have the tensor table; time of a change of plan after the
    death of a server, where all workers answer alike and where no two do; size of a plan; time in
    which a worker places the tensors.
    """
    from sumpter_lab.scaffold.progress import Bar
    from sumpter_lab.scaffold.results.document import SCALE
    from sumpter_lab.scaffold.units import parse_counts
    from sumpter_lab.scale.run import COLUMNS, Spec, run

    counts = parse_counts(members, "--members", 2)
    check_writable(csv, "--csv")
    check_writable(output, "--output")
    spec = Spec(counts, servers, lanes, tensors, seconds, peer_timeout)
    rows: list[Row] = []
    with Bar() as bar:
        for row in run(spec, bar):
            if not as_json:
                if not rows:
                    typer.echo(head_line(COLUMNS))
                typer.echo(row_line(COLUMNS, row))
            rows.append(row)
            if csv is not None:
                write_csv(csv, rows)
            if output is not None:
                SCALE.write(output, rows)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
