"""Every message that the pages of troubles and of the installation quote is in the sources."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from documents import ROOT, Fence, fences

PAGE = ROOT / "docs" / "user" / "troubleshooting.md"
INSTALL = ROOT / "docs" / "user" / "install.md"
SOURCES = ("python", "lab/python", "crates", "deploy/release")
# Stands for what is filled in.
FILLED = "\0"

_RUST_STRING = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
QUOTED = [fence for fence in fences(PAGE) if "message" in fence.marks]


@cache
def literals() -> list[str]:
    """Every string of the sources, in one piece and with its placeholders marked."""
    found: list[str] = []
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            found += [_text(node) for node in ast.walk(ast.parse(path.read_text()))]
        for path in (ROOT / folder).rglob("*.rs"):
            for literal in _RUST_STRING.findall(path.read_text()):
                joined = re.sub(r"\\\n\s*", "", literal).replace('\\"', '"')
                found.append(re.sub(r"\{[^{}]*\}", FILLED, joined))
    # Code spans of Markdown cannot hold backticks.
    return [text.replace("`", "") for text in found if text]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or FILLED for part in node.values)
    return ""


def occurs(message: str) -> bool:
    """Whether one string of the sources has the message's fixed parts, in order."""
    parts = [re.escape(part) for part in message.strip().replace("`", "").split("...")]
    pattern = re.compile(f".*{FILLED}.*".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in literals())


@pytest.mark.parametrize("fence", QUOTED, ids=lambda fence: str(fence.line))
def test_a_quoted_message_is_in_the_sources(fence: Fence) -> None:
    assert occurs(fence.text), f"{fence.place}: no source says {fence.text}"


def rows(page: Path, heading: str) -> list[str]:
    """What the first column of the table below a heading quotes."""
    below = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in below.splitlines() if line.startswith("| `")]
    return [quoted for cell in cells for quoted in re.findall("`(.+?)`", cell)]


def test_what_cannot_be_installed_says_what_the_page_quotes() -> None:
    quoted = rows(INSTALL, "When it cannot be installed")
    # pip's own words begin so; tests/wheel tries what it says of a Python that is too old.
    own = [one for one in quoted if not one.startswith(("ERROR: ", "Cannot install "))]
    assert len(own) > 5
    # Of make a test in tests/python/project reads it.
    unknown = [one for one in own if "PYTHON=" not in one and not occurs(one)]
    assert not unknown, f"{INSTALL.name}: no source says {unknown}"


def test_an_invented_message_is_found() -> None:
    assert QUOTED
    assert not occurs("the coordinator at ... has had enough")
