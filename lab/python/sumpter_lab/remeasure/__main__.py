"""Runs the commands of pages again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sumpter._failure import Failure
from sumpter_lab.remeasure.commands import commands
from sumpter_lab.remeasure.runs import run_all


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sumpter_lab.remeasure",
        description="Runs the commands of pages of docs/measurements again, one after another.",
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
    return run_all(chosen, given.output.resolve())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(2)
