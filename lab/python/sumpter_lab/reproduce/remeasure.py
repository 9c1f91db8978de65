"""Runs the commands of pages of docs/measurements again, in a clone of the repository.

    python -m sumpter_lab.reproduce.remeasure docs/measurements/latency.md -o FOLDER
    python -m sumpter_lab.reproduce.remeasure docs/measurements/*.md --without chaos --list

The commands are those of the pages' `sh` blocks, one after another, from the root of the clone.
Each has a number on its page; what it prints and what it writes lie in FOLDER under the name of the
page and that number, with the figures of measurements as CSV or JSON. `runs.json` there says for
each how long it took, how it ended, how busy the cores were before, and on which commit and
machine, as a description in `lab/records` needs it. A command that has succeeded there on the same
commit is not run again.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sumpter._failure import Failure
from sumpter_lab.local.report import busy_share
from sumpter_lab.scaffold.results import record

ROOT = Path(__file__).resolve().parents[4]
_RUNS = "runs.json"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONTINUED = re.compile(r"\\\n\s*")
# Options whose value is a file or a folder that a command writes, and how a file is called whose
# page says only FILE.
_WRITTEN = {"-o": ".json", "--output": ".json", "--csv": ".csv", "--plot": ".svg"}
# With which option a measurement writes its figures down, given where a page's command does not.
_FIGURES = {
    **dict.fromkeys(("allreduce", "emulate", "server", "ablate", "sum"), "--csv"),
    **dict.fromkeys(("costs", "overhead", "replay", "tenants", "tune"), "--output"),
}
_PROGRAMS = ("sumpter", "python", "torchrun")
_PLACEHOLDERS = ("FILE", "FOLDER")
_BUSY_SAMPLE_S = 2.0


@dataclass(frozen=True)
class Command:
    """One command of a page."""

    page: str
    # From 1, in the order of the page.
    number: int
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number:02}"

    def text(self) -> str:
        return shlex.join(self.words)

    def writing_to(self, folder: Path) -> list[str]:
        """The words, with files that are written in a folder."""
        words = []
        for before, word in zip(("", *self.words), self.words, strict=False):
            suffix = _WRITTEN.get(before)
            if suffix is None:
                words.append(word)
            elif word in _PLACEHOLDERS:
                words.append(str(folder / (self.name + (suffix if word == "FILE" else ""))))
            else:
                words.append(str(folder / f"{self.name}-{Path(word).name}"))
        if not {"--list", *_WRITTEN}.intersection(words) and "bench" in words[:-1]:
            option = _FIGURES.get(words[words.index("bench") + 1])
            words += [option, str(folder / (self.name + _WRITTEN[option]))] if option else []
        return words


def commands(pages: Iterable[Path]) -> Iterator[Command]:
    """All commands of pages, without comments and `sudo`."""
    for page in pages:
        number = 0
        for block in _BLOCK.findall(page.read_text()):
            for line in _CONTINUED.sub(" ", block).splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    number += 1
                    words = words[1:] if words[0] == "sudo" else words
                    yield Command(page.stem, number, tuple(words))


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
    file = folder / _RUNS
    runs = json.loads(file.read_text()) if file.exists() else []
    return {f"{run['page']}-{run['number']:02}": run for run in runs}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Runs the commands of pages of docs/measurements again, one after another."
    )
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE", help="pages, in Markdown")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="where results go")
    parser.add_argument(
        "--without", action="append", default=[], metavar="TEXT", help="leave such commands out"
    )
    parser.add_argument("--list", action="store_true", help="print the commands, run none")
    given = parser.parse_args()
    for page in given.pages:
        if not page.is_file():
            parser.error(f"{page} is no page")
    chosen = [
        command
        for command in commands(given.pages)
        if not any(text in command.text() or text == command.page for text in given.without)
    ]
    if given.list:
        for command in chosen:
            print(f"{command.name}  {command.text()}")
        return 0
    if given.output is None:
        parser.error("say where the results go: -o FOLDER")
    given.output.mkdir(parents=True, exist_ok=True)
    return _run_all(chosen, given.output.resolve())


def _run_all(chosen: list[Command], folder: Path) -> int:
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
        (folder / _RUNS).write_text(json.dumps(list(runs.values()), indent=1) + "\n")
    print(f"{len(chosen)} commands, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(2)
