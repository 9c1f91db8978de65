"""Links to files and folders of the repository that are no pages: examples, manifests, records.

A forge shows such a file, so the site has a page for it, with its text highlighted; a folder is a
list of its files. Records are data, not reading: a link to one leads to a copy of the file.
"""

from __future__ import annotations

import html
import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform

# Where these pages are, beside those of the Markdown files.
FOLDER = "source"
DATA = {".csv", ".json", ".log", ".png", ".svg", ".pftrace"}
_HIDDEN = ("__pycache__",)


class FileLinks(SphinxPostTransform):
    """Leads links to files and folders to what the site has for them."""

    # Before MyST takes them for pages that are missing, and Sphinx for downloads.
    default_priority = 5
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("refdomain") in (None, "", "doc") and node.get("reftype") == "myst":
                self._lead(node)
        for node in list(self.document.findall(addnodes.download_reference)):
            self._lead(node)

    def _lead(self, node: nodes.Element) -> None:
        name = self.env.current_document.docname
        written = posixpath.join(posixpath.dirname(name), node["reftarget"])
        target = posixpath.normpath(written.lstrip("/"))
        path = Path(self.app.srcdir) / target
        if target.startswith("..") or not path.exists():
            return
        if (path / "README.md").is_file():
            uri = self.app.builder.get_relative_uri(name, f"{target}/README")
        else:
            wanted(self.app).add(target)
            uri = self.app.builder.get_relative_uri(name, f"{FOLDER}/{target}")
            if _is_data(path):
                uri = uri.removesuffix(".html")
        link = nodes.reference("", "", *node.children, internal=True, refuri=uri)
        node.replace_self(link)


def wanted(app: Sphinx) -> set[str]:
    """The files and folders that pages link."""
    if not hasattr(app, "sumpter_files"):
        app.sumpter_files = set()
    return app.sumpter_files


def _is_data(path: Path) -> bool:
    return path.suffix in DATA


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    root, waiting, made = Path(app.srcdir), sorted(wanted(app)), set()
    while waiting:
        target = waiting.pop()
        if target in made:
            continue
        made.add(target)
        path = root / target
        if path.is_dir():
            inside = _inside(path)
            waiting += [f"{target}/{one.name}" for one in inside]
            body = _listing(target, inside)
        elif _is_data(path):
            copy = Path(app.outdir) / FOLDER / target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            continue
        else:
            body = _text(app, path)
        title = html.escape(target)
        body = f"<h1>{title}</h1>\n{body}"
        yield f"{FOLDER}/{target}", {"title": title, "body": body}, "page.html"


def _inside(folder: Path) -> list[Path]:
    return sorted(
        one
        for one in folder.iterdir()
        if not one.name.startswith(".") and one.name not in _HIDDEN and one.suffix != ".pyc"
    )


def _listing(target: str, inside: list[Path]) -> str:
    # Addresses are relative to the folder's page, which lies beside the folder.
    start = html.escape(posixpath.basename(target))
    rows = []
    for one in inside:
        address = f"{start}/{html.escape(one.name)}{'' if _is_data(one) else '.html'}"
        mark = "/" if one.is_dir() else ""
        rows.append(f'<li><a href="{address}">{html.escape(one.name)}{mark}</a></li>')
    return f'<ul class="files">{"".join(rows)}</ul>'


def _text(app: Sphinx, path: Path) -> str:
    try:
        language = get_lexer_for_filename(path.name).aliases[0]
    except ClassNotFound:
        language = "text"
    # Templates of Helm are not the language that their names say.
    if "templates" in path.parts:
        language = "text"
    highlighter = app.builder.highlighter
    return highlighter.highlight_block(path.read_text(), language, force=True)


def _forget_downloads(app: Sphinx, env: BuildEnvironment) -> None:
    """MyST takes links to files for downloads, which Sphinx would copy beside these pages."""
    env.dlfiles.clear()


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(FileLinks)
    app.connect("env-check-consistency", _forget_downloads)
    app.connect("html-collect-pages", _pages)
    # What pages link is collected while they are written.
    return {"parallel_read_safe": True, "parallel_write_safe": False}
