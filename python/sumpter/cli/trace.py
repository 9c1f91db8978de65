"""`sumpter trace`: what a running job did, on one clock, as a file for Perfetto or in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sumpter import _native
from sumpter._failure import Failure, UsageError
from sumpter._words import counted
from sumpter.cli.options import (
    CoordinatorOption,
    JobOption,
    JsonOption,
    TokenFileOption,
    TokenOption,
    reached,
)
from sumpter.cli.printing import waiting

if TYPE_CHECKING:
    from sumpter.trace import Explanation

EXAMPLE = "Example: sumpter trace --steps 5 -o run.pftrace --explain --coordinator 10.0.0.1:7700"
_MOST_STEPS = 10_000
_DEFAULT_STEPS = 5


def trace(
    coordinator: CoordinatorOption = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    job: JobOption = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="N",
            help=f"The last N steps that are complete on every worker (default {_DEFAULT_STEPS}).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The file (default: run.pftrace)."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--read", metavar="FILE", help="Explain this file; ask no job."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print what the steps waited for: a verdict, and percents by cause and rank.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write what a running job has just done to a file for Perfetto (ui.perfetto.dev).

    Every worker and every server keeps its latest events in a ring; this collects them through the
    coordinator, aligns the clocks and says by how much they may be off. docs/user/tracing.md.
    """
    if file is not None:
        if steps is not None or output is not None or coordinator is not None:
            raise UsageError("--read explains a file: --coordinator, --steps and -o do not apply")
        _print_explained(file, as_json)
        return
    if steps is not None and not 1 <= steps <= _MOST_STEPS:
        raise UsageError(f"--steps {steps}: expected 1 to {_MOST_STEPS}")
    path = output or Path("run.pftrace")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no directory {path.parent}")
    if path.is_dir():
        raise UsageError(f"-o {path}: it is a directory; name a file in it")
    settings, job = reached(coordinator, token, token_file, job)
    wanted = steps or _DEFAULT_STEPS
    with waiting(f"collecting {counted(wanted, 'step')} from every worker and server"):
        try:
            text = _native.trace(settings, job, wanted, str(path))
        except OSError as error:
            raise Failure(error.strerror or str(error)) from error
    if as_json and not explain:
        typer.echo(json.dumps(json.loads(text) | {"file": str(path)}))
    elif not as_json:
        _print_summary(json.loads(text), path, wanted)
    if explain:
        _print_explained(path, as_json)


def _print_summary(summary: dict[str, object], path: Path, wanted: int) -> None:
    clocks = summary["clock_error_s"]
    assert isinstance(clocks, dict)
    worst, error_s = max(clocks.items(), key=lambda item: item[1])
    steps, slices = summary["steps"], summary["slices"]
    assert isinstance(steps, int) and isinstance(slices, int)
    processes = counted(len(clocks), "process", "processes")
    typer.echo(
        f"{path}: {counted(steps, 'step')} of job '{summary['job']}', {counted(slices, 'slice')} "
        f"of {processes}; clocks aligned within {error_s * 1e6:.0f} us ({worst})"
        + _tightened(summary, error_s)
    )
    if (who := summary["contradicted_by"]) is not None:
        typer.echo(
            f"By the aligned clocks, messages of {who} arrived before they were sent: a clock was "
            "set or changed its rate, and times of different processes may be off by more.",
            err=True,
        )
    if steps != wanted:
        verb = "is" if steps == 1 else "are"
        typer.echo(
            f"Only {counted(steps, 'step')} of {wanted} {verb} complete in every ring; the setting "
            "trace_events makes rings larger."
        )
    missing = summary["missing"]
    if isinstance(missing, list) and missing:
        typer.echo(f"No answer from {', '.join(map(str, missing))}: not in the file.")


def _tightened(summary: dict[str, object], error_s: float) -> str:
    """What the data connections gave, if they gave anything to speak of."""
    before_s = summary["heartbeats_error_s"]
    if not isinstance(before_s, float) or error_s > 0.95 * before_s:
        return ""
    return f", {before_s * 1e6:.0f} us without the data connections' own times"


def _print_explained(path: Path, as_json: bool) -> None:
    from sumpter.trace import TraceError, explain, read, verdict

    try:
        with waiting(f"reading {path}"):
            trace = read(path)
            found = explain(trace)
    except TraceError as error:
        raise Failure(str(error)) from error
    if as_json:
        typer.echo(json.dumps([_as_dict(one) for one in found], indent=2))
        return
    for line in (*verdict(found), *trace.remarks):
        typer.echo(line)


def _as_dict(one: Explanation) -> dict[str, object]:
    return {
        "step": one.step,
        "rank": one.rank,
        "duration_s": one.duration_s,
        "shares": one.shares,
        "tensor": one.tensor,
        "sentences": list(one.sentences),
    }
