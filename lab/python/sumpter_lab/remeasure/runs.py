"""Runs commands and keeps what they leave, in a folder that `runs.json` describes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sumpter._failure import Failure
from sumpter_lab.local.report import busy_share
from sumpter_lab.remeasure.commands import Command
from sumpter_lab.scaffold.results import record

ROOT = Path(__file__).resolve().parents[4]
RUNS = "runs.json"
_PROGRAMS = ("sumpter", "python", "torchrun")
_BUSY_SAMPLE_S = 2.0


def run(command: Command, folder: Path) -> dict[str, Any]:
    """Runs a command. What it did, as an entry of `runs.json`."""
    busy = busy_share(_BUSY_SAMPLE_S)
    # A program that is missing is an exit code as well.
    words = ["env", *(_found(word) for word in command.writing_to(folder))]
    printed = folder / f"{command.name}.txt"
    started = time.monotonic()
    with printed.open("w") as out:
        done = subprocess.run(words, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False)
    return {
        "page": command.page,
        "number": command.number,
        "command": command.text(),
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "busy_before": round(busy, 3),
        "files": sorted(file.name for file in folder.glob(f"{command.name}*")),
        **record.environment(),
    }


def _found(word: str) -> str:
    """The program of this environment, if a word is the name of one."""
    program = Path(sys.executable).parent / word
    return str(program) if word in _PROGRAMS and program.exists() else word


def _known(folder: Path) -> dict[str, dict[str, Any]]:
    file = folder / RUNS
    runs = json.loads(file.read_text()) if file.exists() else []
    return {f"{run['page']}-{run['number']:02}": run for run in runs}


def run_all(chosen: list[Command], folder: Path) -> int:
    runs, commit = _known(folder), record.environment()["commit"]
    if not commit or str(commit).endswith("-dirty"):
        raise Failure(f"the sources are not those of a commit ({commit!r}): commit first")
    failed = 0
    for at, command in enumerate(chosen, 1):
        known = runs.get(command.name)
        if known and (known["command"], known["commit"], known["exit_code"]) == (
            *(command.text(), commit),
            0,
        ):
            continue
        print(f"[{at}/{len(chosen)}] {command.name}: {command.text()}", flush=True)
        done = runs[command.name] = run(command, folder)
        failed += done["exit_code"] != 0
        print(
            f"    exit code {done['exit_code']} after {done['seconds']:.0f} s; "
            f"{done['busy_before']:.0%} of the cores' time was in use before",
            flush=True,
        )
        (folder / RUNS).write_text(json.dumps(list(runs.values()), indent=1) + "\n")
    print(f"{len(chosen)} commands, {failed} failed")
    return 1 if failed else 0
