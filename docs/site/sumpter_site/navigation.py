"""The sidebar, which is the list of pages in docs/README.md.

A section of that list is a group of the sidebar, and the first cell of each row has its pages. A
README of a folder, such as docs/measurements/README.md, has below it what it links in its folder.
So a page is listed once, where a reader of a forge looks for it as well.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

LIST = "docs/README"
# Of the sidebar only: the list is no page of itself.
_WHOLE_LIST = ("All pages", LIST)

_HEADING = re.compile(r"^## (.+)$")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s:]+)\)")

Entry = tuple[str, str]


def groups(root: Path) -> dict[str, list[Entry]]:
    """The groups of the sidebar, each with titles and names of its pages."""
    found: dict[str, list[Entry]] = {}
    for line in (root / f"{LIST}.md").read_text().splitlines():
        if heading := _HEADING.match(line):
            entries = found.setdefault(heading[1], [])
        elif line.startswith("| ["):
            first_cell = line.split("|")[1]
            for title, target in _LINK.findall(first_cell):
                name = page_of(root, LIST, target)
                if name is None:
                    raise ValueError(f"{LIST}.md: {target} is no page")
                entries.append((title, name))
    return found


def below(root: Path, readme: str) -> list[Entry]:
    """What a folder's README links in its folder, in the order in which it does."""
    folder = posixpath.dirname(readme)
    found: dict[str, str] = {}
    for title, target in _LINK.findall((root / f"{readme}.md").read_text()):
        name = page_of(root, readme, target)
        if name and name != readme and posixpath.dirname(name) == folder:
            found.setdefault(name, title)
    return [(title, name) for name, title in found.items()]


def page_of(root: Path, page: str, target: str) -> str | None:
    """The name of the page that a link of another page leads to, if it leads to one."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if (root / path / "README.md").is_file():
        path = f"{path}/README.md"
    if not path.endswith(".md") or not (root / path).is_file():
        return None
    return path.removesuffix(".md")


def _toctree(entries: list[Entry], caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    lines = [f"{title} </{name}>" for title, name in entries]
    return "\n".join(["", "```{toctree}", *options, "", *lines, "```", ""])


def _add_toctrees(app: Sphinx, name: str, source: list[str]) -> None:
    root = Path(app.srcdir)
    if name == app.config.root_doc:
        app.env.note_dependency(str(root / f"{LIST}.md"))
        listed = groups(root)
        first = next(iter(listed))
        listed[first].append(_WHOLE_LIST)
        source[0] += "".join(_toctree(entries, caption) for caption, entries in listed.items())
    elif posixpath.basename(name) == "README" and name != LIST:
        if entries := below(root, name):
            source[0] += _toctree(entries)


def _copy_indexes(app: Sphinx, failure: Exception | None) -> None:
    """An address that ends in a folder shows its README, as on a forge."""
    if failure is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("README.html"):
            shutil.copyfile(page, page.with_name("index.html"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _add_toctrees)
    app.connect("build-finished", _copy_indexes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
