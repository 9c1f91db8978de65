"""`sumpter bench tenants`: its options; the work is done in sumpter_lab.tenants."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sumpter._failure import Failure, UsageError
from sumpter._sizes import parse_size
from sumpter.cli.options import JsonOption, SetOption, parse_free_assignments
from sumpter_lab.cli.options import FiguresOption
from sumpter_lab.scaffold.results.output import check_writable, write_json

if TYPE_CHECKING:
    from sumpter_lab.tenants.run import Spec

EXAMPLE = "Example: sumpter bench tenants --jobs 8 --bandwidth-mbps 200 --greedy -o tenants.json"

# These follow from the other options, or from where a process runs.
_DECIDED_HERE = frozenset(
    {
        *("architecture", "coordinator", "job", "lanes", "local_rank", "local_size", "machine"),
        *("rank", "servers", "start_timeout_s", "token", "token_file", "world_size"),
    }
)
_ALIGNMENT_BYTES = 64
# What a coordinator admits.
_MOST_WEIGHT = 1000

Jobs = Annotated[int, typer.Option("--jobs", metavar="J", min=2, help="Jobs at once.")]
Workers = Annotated[int, typer.Option("--workers", "-n", metavar="N", min=2, help="Of each job.")]
Weights = Annotated[
    str | None,
    typer.Option("--weights", metavar="W,..", help="A weight for each job, instead of 1 for all."),
]
Greedy = Annotated[
    bool,
    typer.Option(
        "--greedy",
        help="Also put a greedy job in the place of a polite one: 4 times the workers, so as many "
        "connections, 4 times as many tensors in flight, each 4 times the size.",
    ),
]
Bandwidth = Annotated[
    float | None,
    typer.Option(
        "--bandwidth-mbps",
        metavar="B",
        help="Shape the server's link, in network namespaces (root), so that it is what is shared "
        "(default: loopback, where the cores are).",
    ),
]
Bytes = Annotated[str, typer.Option("--bytes", metavar="SIZE", help="The size of each tensor.")]
InFlight = Annotated[
    int, typer.Option("--in-flight", metavar="N", min=1, help="Tensors that a job sums at once.")
]
Lanes = Annotated[
    int, typer.Option("--lanes", metavar="N", min=1, help="Summing threads of the server.")
]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", min=0.1, help="The length of each window.")
]
Rounds = Annotated[
    int, typer.Option("--rounds", metavar="N", min=1, help="Windows of each kind, interleaved.")
]


def tenants(
    jobs: Jobs = 8,
    workers: Workers = 2,
    weights: Weights = None,
    greedy: Greedy = False,
    bandwidth_mbps: Bandwidth = None,
    size: Bytes = "256KiB",
    in_flight: InFlight = 4,
    lanes: Lanes = 1,
    seconds: Seconds = 5.0,
    rounds: Rounds = 8,
    assignments: SetOption = None,
    output: FiguresOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what each of many jobs gets of one server, against its fair share.

    Windows of all jobs and of one job alone are interleaved; the latter's rate, divided by weight,
    is the fair share. Every sum is checked.
    """
    from rich.console import Console

    from sumpter_lab.scaffold import units
    from sumpter_lab.tenants.job import Shape
    from sumpter_lab.tenants.report import print_outcome
    from sumpter_lab.tenants.run import Spec

    rate = None if bandwidth_mbps is None else units.check_rate(bandwidth_mbps, "--bandwidth-mbps")
    asked = Spec(
        weights=_weights(jobs, weights),
        shape=Shape(workers, _size(size), in_flight),
        greedy=greedy,
        rate_mbit=rate,
        lanes=lanes,
        seconds=seconds,
        rounds=rounds,
        settings=parse_free_assignments(assignments, _DECIDED_HERE),
    )
    check_writable(output, "--output")
    found = _run(asked)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        print_outcome(Console(highlight=False, markup=False), found)
    if output is not None:
        write_json(output, found, indent=1)


def _run(asked: Spec) -> dict[str, object]:
    from sumpter_lab.scaffold.network.counters import available_bytes
    from sumpter_lab.scaffold.progress import Bar
    from sumpter_lab.tenants.run import run

    if asked.memory_bytes > available_bytes():
        needed, free = asked.memory_bytes / 1e9, available_bytes() / 1e9
        raise Failure(
            f"the jobs need {needed:.1f} GB of memory, {free:.1f} GB are free: give smaller "
            "--bytes, or fewer --jobs, --workers or --in-flight"
        )
    folder = Path(tempfile.mkdtemp(prefix="sumpter-tenants-"))
    try:
        with Bar() as bar:
            return run(asked, folder, bar)
    finally:
        shutil.rmtree(folder)


def _weights(jobs: int, text: str | None) -> tuple[int, ...]:
    if text is None:
        return (1,) * jobs
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= _MOST_WEIGHT for part in parts):
        raise UsageError(
            f"--weights {text}: give whole numbers of 1 to {_MOST_WEIGHT}, as in 1,2,4"
        )
    if len(parts) != jobs:
        raise UsageError(f"--weights {text}: {len(parts)} weights for {jobs} jobs; give one each")
    return tuple(int(part) for part in parts)


def _size(text: str) -> int:
    size = parse_size(text, "--bytes")
    if size % _ALIGNMENT_BYTES:
        raise UsageError(f"--bytes {text}: give a multiple of {_ALIGNMENT_BYTES} bytes")
    return size
