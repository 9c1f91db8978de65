"""Writes the tables of pages again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sumpter._failure import Failure
from sumpter_lab.tables.page import PAGES, rewritten


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sumpter_lab.tables",
        description="Writes the tables of measurements' pages again, from lab/records.",
    )
    parser.add_argument(
        "pages", nargs="*", type=Path, metavar="PAGE", help="pages, instead of docs/measurements"
    )
    changed = 0
    for page in parser.parse_args().pages or sorted(PAGES.glob("*.md")):
        if not page.is_file():
            parser.error(f"{page} is no page")
        old = page.read_text()
        new = rewritten(old, page.name)
        if new != old:
            page.write_text(new)
            changed += 1
            print(f"{page}: changed")
    print(f"{changed} pages changed")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(2)
