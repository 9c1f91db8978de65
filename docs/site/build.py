"""Builds the site, and checks every link within it.

python docs/site/build.py FOLDER             the site, for `make site`
python docs/site/build.py FOLDER --external  asks every other host that pages link
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from sumpter_site import links

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def build(folder: Path, builder: str = "html") -> int:
    """Builds from nothing, with warnings as errors; returns the exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    # A doctree of an earlier build would hide what a page of this one lacks.
    trees = folder.with_name(f"{folder.name}.doctrees")
    shutil.rmtree(trees, ignore_errors=True)
    options = ["-b", builder, "-c", str(HERE), "-d", str(trees), "-q", "-n", "-W", "--keep-going"]
    code = sphinx([*options, str(ROOT), str(folder)])
    shutil.rmtree(trees, ignore_errors=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--external", action="store_true", help="check links to other hosts")
    options = parser.parse_args()
    if options.external:
        return build(options.folder, "linkcheck")
    if code := build(options.folder):
        return code
    if wrong := links.wrong(options.folder):
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    count = sum(1 for _ in options.folder.rglob("*.html"))
    print(f"{count} pages; open {options.folder}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
