"""The documentation as a whole: its terms, its links and its generated pages."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import api_page
import unimported
from documents import ROOT, all_pages, name_of

GLOSSARY = ROOT / "docs" / "user" / "glossary.md"
# What an engineer of distributed training searches for.
SEARCHED = (
    *("straggler", "failover", "throughput", "zero-copy", "back-pressure", "incast"),
    *("head-of-line blocking", "fault tolerance", "multi-tenant", "exactly-once"),
)
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
# The first row of a block of them, and the line below it.
_FIRST_ROW = re.compile(r"(?:^|\n\n)(\|.*)\n?(.*)")
_RULE = re.compile(r"\|[ :|-]+\|")


def entries() -> dict[str, str]:
    rows = re.findall(r"^\| ([^|]+?) \| (.+) \|$", GLOSSARY.read_text(), re.MULTILINE)
    return {term: meaning for term, meaning in rows if term != "term"}


@pytest.mark.parametrize("term", SEARCHED)
def test_a_term_leads_to_the_page_that_explains_it(term: str) -> None:
    first = _LINK.search(entries()[term])
    assert first, f"the glossary links no page for {term}"
    text = " ".join((GLOSSARY.parent / first[1]).read_text().split())
    assert term in text.lower(), f"{first[1]} does not mention {term}"


def test_every_term_links_a_page() -> None:
    assert not [term for term, meaning in entries().items() if not _LINK.search(meaning)]


def test_the_glossary_is_in_the_order_of_the_alphabet() -> None:
    terms = [term.lower() for term in entries()]
    assert terms == sorted(terms)


def test_every_link_to_a_section_leads_to_one() -> None:
    broken = []
    for page in [*all_pages(), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target, section in _LINK.findall(_FENCED.sub("", page.read_text())):
            other = page.parent / target if target else page
            if section and other.suffix == ".md" and section not in sections(other):
                broken.append(f"{name_of(page)}: {target}#{section}")
    assert not broken, "\n".join(broken)


def test_no_blank_line_divides_a_table() -> None:
    """Rows after one are shown as text, since a table begins with a header and a rule."""
    broken = []
    for page in all_pages():
        for row, below in _FIRST_ROW.findall(_FENCED.sub("", page.read_text())):
            if not _RULE.fullmatch(below):
                broken.append(f"{name_of(page)}: {row}")
    assert not broken, "\n".join(broken)


def test_a_section_is_named_after_its_heading(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The `join` of ranks, 2-way\n```sh\n# no heading\n```\n## Same\n## Same\n")
    assert sections(page) == {"the-join-of-ranks-2-way", "same", "same-1"}


def test_the_api_reference_is_up_to_date() -> None:
    page = ROOT / "docs" / "user" / "api.md"
    assert page.read_text() == api_page.page(), "run `make docs`"


@pytest.mark.parametrize(
    "name",
    [name for name in api_page.MODULES if api_page.is_front(name) and name != "sumpter.ray"],
)
def test_the_source_of_a_front_says_what_the_imported_one_does(name: str) -> None:
    """sumpter.ray's configuration has fields of Ray's, which the source does not list."""
    framework = name.split(".")[1]
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: {name} is not compared")
    read = unimported.module(name)
    # Apart from this process: not all frameworks can be in one.
    child = [sys.executable, "-c", _DESCRIBE, name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(child, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documentation, imported = json.loads(done.stdout.splitlines()[-1])
    assert (read.__doc__ or "").split() == documentation.split()
    described = {each: api_page.described(each, getattr(read, each)) for each in read.__all__}
    assert described == imported


_DESCRIBE = """
import importlib, json, sys
import api_page
module = importlib.import_module(sys.argv[1])
described = {each: api_page.described(each, getattr(module, each)) for each in module.__all__}
print(json.dumps([module.__doc__ or "", described]))
"""


def sections(page: Path) -> set[str]:
    """The anchors that a forge gives to a page's headings."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        again = sum(
            one == anchor or re.fullmatch(f"{anchor}-\\d+", one) is not None for one in found
        )
        found.append(f"{anchor}-{again}" if again else anchor)
    return set(found)
