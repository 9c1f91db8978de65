"""The site that `make site` builds: complete, without warnings, and found by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from documents import ROOT, all_pages, name_of
from site_pages import built_site

FOLDER = ROOT / "docs" / "site"
MORE = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")]
PAGES = [*all_pages(), *MORE, ROOT / "lab" / "records" / "index.md"]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sphinx", reason="no Sphinx: make setup installs it")
    monkeypatch.syspath_prepend(str(FOLDER))
    import sumpter_site.links
    import sumpter_site.navigation

    return sumpter_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


def test_the_site_is_built_without_warnings_and_broken_links(site: Path) -> None:
    # It is built with warnings as errors, and its links are checked, or there is none.
    assert (site / "index.html").is_file()
    assert not [name_of(page) for page in PAGES if not address(site, page).is_file()]


def test_every_page_can_be_reached_from_the_navigation(site: Path) -> None:
    listed = sidebar(site / "index.html")
    missing = [name_of(page) for page in PAGES if address(site, page) not in listed]
    assert missing == ["README.md"], "list these in docs/README.md, or in their folder's README.md"


def test_the_list_of_pages_names_each_once(parts: ModuleType) -> None:
    groups = parts.navigation.groups(ROOT)
    names = [name for entries in groups.values() for _, name in entries]
    titles = [title for entries in groups.values() for title, _ in entries]
    assert len(groups) >= 7
    assert sorted(names) == sorted(set(names))
    assert sorted(titles) == sorted(set(titles))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_headings_are_unique_where_they_stand(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    open_above: list[str] = []
    seen = set()
    for marks, heading in re.findall(r"^(#+) (.+)$", text, re.MULTILINE):
        open_above[len(marks) - 1 :] = [heading]
        assert tuple(open_above) not in seen, f"twice: {' / '.join(open_above)}"
        seen.add(tuple(open_above))


def test_titles_are_unique() -> None:
    titles = [re.search(r"^# (.+)$", page.read_text(), re.MULTILINE)[1] for page in PAGES]
    assert not {title for title in titles if titles.count(title) > 1}


def test_the_search_knows_terms_titles_and_the_api(site: Path) -> None:
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    titles = index["alltitles"]
    assert "Choose your launcher" in titles and "The token is refused" in titles
    assert "straggler" in index["terms"]
    names = {entry[-1] for entry in index["objects"]["sumpter.torch"]}
    assert {"DistributedOptimizer", "allreduce"} <= names


def test_every_public_name_is_an_object_of_the_site(site: Path) -> None:
    import sumpter.torch

    page = (site / "docs/user/api.html").read_text()
    module = page.partition('id="sumpter.torch"')[2].partition('id="sumpter.torch.elastic"')[0]
    again = module.partition("Also here, as above: ")[2].partition("</p>")[0]
    absent = [
        name
        for name in sumpter.torch.__all__
        if f'id="sumpter.torch.{name}"' not in page and f">{name}<" not in again
    ]
    assert absent == []


def test_a_broken_link_and_a_foreign_script_are_found(parts: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there">x</a><script src="//host/x.js">')
    (tmp_path / "b.html").write_text('<p id="here"></p><a href="c.html">x</a><a href="#here">y</a>')
    assert parts.links.wrong(tmp_path) == [
        "a.html: b.html#there is no place",
        "a.html: //host/x.js needs a network",
        "b.html: c.html is no place",
    ]


def test_a_page_that_links_nothing_real_fails_the_build(parts: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="user/none.md is no page"):
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "README.md").write_text("## Start\n| [A](user/none.md) | b |\n")
        parts.navigation.groups(tmp_path)


def address(site: Path, page: Path) -> Path:
    return site / page.relative_to(ROOT).with_suffix(".html")


class _Sidebar(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.depth, self.links = 0, []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        said = dict(attributes)
        if tag == "div" and (self.depth or "sidebar-tree" in (said.get("class") or "")):
            self.depth += 1
        elif tag == "a" and self.depth and said.get("href"):
            self.links.append(said["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self.depth:
            self.depth -= 1


def sidebar(page: Path) -> set[Path]:
    """What the navigation of a page leads to."""
    parser = _Sidebar()
    parser.feed(page.read_text())
    return {(page.parent / link.partition("#")[0]).resolve() for link in parser.links}


def test_the_command_says_where_the_site_is(site: Path) -> None:
    """`make site` is this command, and its help is what people read first."""
    said = subprocess.run(
        [sys.executable, str(FOLDER / "build.py"), "--help"], capture_output=True, text=True
    )
    assert said.returncode == 0 and "--external" in said.stdout
    makefile = (ROOT / "Makefile").read_text()
    assert "docs/site/build.py target/site" in makefile
