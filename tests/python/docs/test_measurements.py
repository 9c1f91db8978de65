"""Measurements can be repeated and believed: each has a command that exists and a record."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from command_lines import parse, shell_text
from documents import ROOT, fences, name_of, own_commands, user_pages

FOLDER = ROOT / "docs" / "measurements"
# Conclusions link pages, and instruments have no results.
WITHOUT_RESULTS = {"README.md", "benchmarks.md", "benchmarks-local.md"}
PAGES = sorted(FOLDER.glob("*.md"))
RESULTS = [page for page in PAGES if page.name not in WITHOUT_RESULTS]
RECORD = re.compile(r"lab/records/([\w-]+)")
# Prints the same figures on every machine, so that it needs no record.
EXACT = re.compile(
    r"cargo test .*--nocapture|python -m sumpter_lab\.(whatif\.byteps|reproduce\.page)"
)
# What only a measurement tells.
FIGURE = re.compile(
    r"\d(?:\.\d+)? ?(?:GB/s|s/GB|µs|us\b)"
    r"|\bmedian of|\bquartile|\bstandard error of|\btimes as fast"
)
# These speak of a method's definition, or show what a program prints.
DEFINED = {"api.md", "configuration.md", "doctor.md", "profiles.md", "metrics.md"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_has_options_that_exist(page: Path) -> None:
    for fence in fences(page):
        for words in own_commands(shell_text(fence) if fence.language != "text" else ""):
            try:
                parse(words)
            except Exception as error:
                pytest.fail(f"{fence.place}: {shlex.join(words)}: {error}")


@pytest.mark.parametrize("page", RESULTS, ids=name_of)
def test_every_table_has_a_command_and_a_record(page: Path) -> None:
    assert any(fence.language == "sh" for fence in fences(page)), "no command repeats it"
    for heading, text in sections(page.read_text()):
        if "|---" in text and not heading.startswith("Method"):
            known = [
                name for name in RECORD.findall(text) if (ROOT / "lab/records" / name).is_dir()
            ]
            assert known or EXACT.search(page.read_text()), f"{heading}: a table without a record"


@pytest.mark.parametrize("page", user_pages(), ids=name_of)
def test_figures_in_guides_link_their_measurement(page: Path) -> None:
    if page.name in DEFINED:
        return
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for paragraph in prose.split("\n\n"):
        if FIGURE.search(paragraph):
            assert "measurements/" in paragraph, f"no measurement is linked: {paragraph}"


def test_a_figure_without_a_measurement_is_found() -> None:
    assert FIGURE.search("a call takes 12.5 µs")
    assert not FIGURE.search("links of 25 Gb/s and a credit of 256 KiB")


def sections(text: str) -> list[tuple[str, str]]:
    """Each heading with what follows it, the page's own as well."""
    parts = re.split(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE
    )
    return list(zip(parts[1::2], parts[2::2], strict=True))
