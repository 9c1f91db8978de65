"""Every message that the troubleshooting page quotes is in the sources."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from documents import ROOT, Fence, fences

PAGE = ROOT / "docs" / "user" / "troubleshooting.md"
SOURCES = ("python", "lab/python", "crates")
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
    return [text for text in found if text]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or FILLED for part in node.values)
    return ""


def occurs(message: str) -> bool:
    """Whether one string of the sources has the message's fixed parts, in order."""
    parts = [re.escape(part) for part in message.strip().split("...")]
    pattern = re.compile(f".*{FILLED}.*".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in literals())


@pytest.mark.parametrize("fence", QUOTED, ids=lambda fence: str(fence.line))
def test_a_quoted_message_is_in_the_sources(fence: Fence) -> None:
    assert occurs(fence.text), f"{fence.place}: no source says {fence.text}"


def test_an_invented_message_is_found() -> None:
    assert QUOTED
    assert not occurs("the coordinator at ... has had enough")
