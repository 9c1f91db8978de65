"""`sumpter reproduce`: the papers' figures beside ours. Cases in, verdicts and files out."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sumpter._errors import SumpterError
from sumpter._failure import Failure, UsageError, message_of
from sumpter.cli.options import JsonOption
from sumpter.cli.printing import print_parts
from sumpter_lab.cli import single

if TYPE_CHECKING:
    from sumpter_lab.reproduce.case import Case

EXAMPLE = (
    "Examples: sumpter reproduce, which lists the cases; sumpter reproduce byteps-fig12 -o papers; "
    "sumpter reproduce --all --quick -o papers; sumpter report papers/*.json -o papers.html"
)
CasesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="CASE", help="Cases by name; none lists them.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Run every case; takes about an hour.")]
QuickOption = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Smaller sizes with the same claims; with --all no measurements.",
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="Write each case's results as JSON and its plots to this folder, and the files of "
        "its instruments to the subfolder rows.",
    ),
]


def reproduce(
    cases: CasesArgument = None,
    everything: AllOption = False,
    quick: QuickOption = False,
    output: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the figures and tables of BytePS, PHub, NetAI'20 and ByteScheduler, and judge them.

    Without arguments it lists the cases. A case prints its set-up, the paper's figure, ours and a
    verdict. Those that are emulated in real time need root.
    """
    from sumpter_lab.reproduce.cases import ALL, find

    if everything and cases:
        raise UsageError("--all runs every case: leave out the names, or --all")
    if not everything and not cases:
        if quick or output is not None:
            raise UsageError("name a case, or give --all; `sumpter reproduce` lists the cases")
        _list(ALL, as_json)
        return
    chosen = [find(name) for name in dict.fromkeys(cases or ())]
    if everything:
        chosen = [case for case in ALL if case.how.is_exact or not quick or not case.runs]
    if output is not None:
        _make(output)
    results, failed = _run(chosen, everything, quick, output, as_json)
    if as_json:
        import json

        typer.echo(json.dumps(results, indent=2))
    elif len(chosen) > 1:
        _summary(results)
    if failed:
        raise Failure(f"{len(failed)} of {len(chosen)} cases failed: {', '.join(failed)}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"--output {folder}: cannot be made: {error.strerror}") from error


def _run(
    chosen: list[Case], everything: bool, quick: bool, output: Path | None, as_json: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """All results, and the names of cases that failed. One case that fails ends the command where
    it is the only one, and none of the others."""
    from sumpter_lab.reproduce import picture
    from sumpter_lab.reproduce.run import Instruments, lacks, run, save

    results, failed = [], []
    instruments = Instruments(output)
    if output is not None and not picture.is_possible():
        _say("no plots are drawn: pip install 'sumpter-lab[plot]'")
    for number, case in enumerate(chosen, 1):
        place = f"[{number}/{len(chosen)}] {case.name}"
        missing = lacks(case, os.geteuid() == 0)
        if missing and everything:
            _say(f"{place}: left out, {missing}")
            continue
        if missing:
            raise Failure(f"{case.name}: {missing}")
        began_s = time.monotonic()
        note = partial(_note, place)
        try:
            result = run(case, quick=quick, note=note, instruments=instruments)
        except (Failure, SumpterError) as error:
            if len(chosen) == 1:
                raise
            _say(f"{place}: {message_of(error)}")
            failed.append(case.name)
            continue
        results.append(result)
        written = [] if output is None else save(result, output)
        if len(chosen) > 1:
            _say(f"{place}: {result['verdict']}, {time.monotonic() - began_s:.1f} s")
        elif not as_json:
            _show(result)
            for file in written:
                typer.echo(f"wrote {file}")
    return results, failed


def _note(place: str, text: str) -> None:
    _say(f"{place}: {text}")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _list(cases: tuple[Case, ...], as_json: bool) -> None:
    """What there is, by paper."""
    from rich.table import Table
    from rich.text import Text

    if as_json:
        import json

        names = ("name", "paper", "place", "claim", "how", "needs")
        typer.echo(json.dumps([{n: str(getattr(case, n)) for n in names} for case in cases]))
        return
    parts: list[Any] = []
    for paper in dict.fromkeys(case.paper for case in cases):
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in ("case", "in the paper", "how", "claim"):
            table.add_column(title, no_wrap=title != "claim")
        for case in cases:
            if case.paper == paper:
                how = f"{case.how}, {case.needs}" if case.needs else str(case.how)
                table.add_row(case.name, case.place, how, case.claim)
        parts += [Text(paper, style="bold"), table, ""]
    print_parts(parts[:-1], wraps=True)


def _show(result: dict[str, Any]) -> None:
    """One case in full."""
    from rich.table import Table
    from rich.text import Text

    from sumpter_lab.reproduce.case import plain

    head = f"{result['name']}: {result['paper']}, {result['place']}"
    parts: list[Any] = [Text(head, style="bold"), Text(f"claim: {result['claim']}")]
    parts.append(Text(f"how: {result['how']}"))
    if result["setup"]:
        parts.append(Text(f"setup: {result['setup']}"))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("claim", "paper", "ours", "verdict"):
        table.add_column(title)
    for claim in result["claims"]:
        table.add_row(*(claim[name] for name in ("text", "paper", "ours", "verdict")))
    parts += ["", table]
    notes = [result["why"], *result["declared"]]
    parts += ["", *(Text(plain(note)) for note in notes if note)] if any(notes) else []
    parts += ["", Text(f"verdict: {result['verdict']}", style="bold")]
    print_parts(parts, wraps=True)


def _summary(results: list[dict[str, Any]]) -> None:
    """A line for each claim of each case."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("case", "paper", "ours", "verdict"):
        table.add_column(title, no_wrap=title == "case")
    for result in results:
        for number, claim in enumerate(result["claims"]):
            name = result["name"] if number == 0 else ""
            table.add_row(name, claim["paper"], claim["ours"], claim["verdict"])
    verdicts = [result["verdict"] for result in results]
    counts = ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts))
    print_parts([table, "", f"{len(results)} cases: {counts}"], wraps=True)


app = single(reproduce, EXAMPLE)
