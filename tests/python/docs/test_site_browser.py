"""The site in a real browser: on a laptop and on a phone, light and dark, without a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from browser import LAPTOP, PHONE, launched
from site_pages import built_site

DEVICES = pytest.mark.parametrize("device", [LAPTOP, PHONE], ids=["laptop", "phone"])
# Pages with what is hard to show: wide tables, long lines of code, pictures, a long list.
PAGES = (
    "index",
    "docs/README",
    "docs/user/quickstart",
    "docs/user/choose-launcher",
    "docs/user/configuration",
    "docs/user/fault-tolerance",
    "docs/user/kubernetes",
    "docs/user/planning",
    "docs/user/whatif",
    "docs/user/api",
    "docs/user/comparison",
    "docs/user/glossary",
    "docs/measurements/README",
    "docs/measurements/latency",
    "docs/design/wire",
    "ARCHITECTURE",
    "CHANGELOG",
    "lab/records/index",
    "source/examples/diloco_digits.py",
    "source/examples/monitoring",
    "search",
)


@dataclass
class View:
    """An open page of the site, and all that it asked for or complained about."""

    page: object
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def value(self, expression: str) -> object:
        return self.page.evaluate(expression)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    yield from launched("the site")


@pytest.fixture(scope="module")
def open_site(browser, site: Path) -> Iterator[Callable[..., View]]:
    """Opens a context for the site's files, with every request noted."""
    contexts = []

    def open_site(device: dict, name: str = "index", **options: object) -> View:
        context = browser.new_context(**device, **options)
        contexts.append(context)
        seen = View(context.new_page())
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("console", lambda message: seen.complaints.append(message.text))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.goto((site / f"{name}.html").as_uri())
        return seen

    yield open_site
    for context in contexts:
        context.close()


@DEVICES
def test_no_page_is_wider_than_the_screen(device: dict, open_site, site: Path) -> None:
    seen = open_site(device)
    for name in PAGES:
        seen.page.goto((site / f"{name}.html").as_uri())
        wide = seen.value(
            "[document.documentElement.scrollWidth, innerWidth,"
            " ...[...document.querySelectorAll('article *')].filter(e => {"
            "  const r = e.getBoundingClientRect();"
            "  return r.width && r.right > innerWidth + 1 &&"
            "   !e.closest('.table-wrapper, pre, .sd-tab-set, .highlight'); })"
            ".map(e => e.tagName + ' ' + e.className + ': ' + e.textContent.slice(0, 60))]"
        )
        assert wide[0] <= wide[1] and not wide[2:], (name, wide)


@DEVICES
def test_the_site_asks_no_other_host_and_complains_of_nothing(device, open_site, site) -> None:
    seen = open_site(device)
    for name in PAGES:
        seen.page.goto((site / f"{name}.html").as_uri())
    assert not [url for url in seen.requests if not url.startswith(site.as_uri())]
    assert seen.complaints == []


def test_the_search_finds_terms_messages_and_names(open_site) -> None:
    seen = open_site(LAPTOP)
    for words, page in (
        ("straggler", "docs/user/read-a-trace.html"),
        ("token refused", "docs/user/troubleshooting.html"),
        ("DistributedOptimizer", "docs/user/api.html"),
        ("sumpter.torch.allreduce", "docs/user/api.html#sumpter.torch.allreduce"),
    ):
        seen.page.fill(".sidebar-search", words)
        seen.page.press(".sidebar-search", "Enter")
        found = f"ul.search a[href*='{page}']"
        seen.page.wait_for_selector(found, timeout=60_000, state="attached")


def test_a_phone_has_the_navigation_in_a_drawer(open_site) -> None:
    seen = open_site(PHONE)
    drawer = "document.querySelector('.sidebar-drawer').getBoundingClientRect().left"
    assert seen.value(drawer) < 0
    seen.page.click(".mobile-header .nav-overlay-icon")
    seen.page.wait_for_function(f"{drawer} === 0")
    seen.page.click(".sidebar-tree >> text=Glossary")
    seen.page.wait_for_load_state()
    assert seen.page.url.endswith("docs/user/glossary.html")


def test_commands_are_copied_without_prompt_and_output(open_site, site: Path) -> None:
    seen = open_site(LAPTOP, "docs/user/planning", permissions=["clipboard-read"])
    block = ".highlight-console"
    seen.page.hover(f"{block} >> nth=0")
    seen.page.click(f"{block} button.copybtn >> nth=0")
    seen.page.wait_for_selector(f"{block} button.copybtn.success")
    copied = seen.page.evaluate("navigator.clipboard.readText()")
    assert copied == "sumpter plan --machines examples/clusters/racks.toml"


def _luminance(colour: str) -> float:
    """Of WCAG 2, from 0 to 1."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(one: float, other: float) -> float:
    """Of two luminances, as WCAG 2 defines it."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_links_stand_out(scheme: str, open_site) -> None:
    seen = open_site(LAPTOP, "docs/user/quickstart", color_scheme=scheme)
    background = _luminance(seen.value("getComputedStyle(document.body).backgroundColor"))
    for part, least in (("article p", 7.0), ("article p a, article li a", 4.5)):
        colour = seen.value(f"getComputedStyle(document.querySelector('{part}')).color")
        assert _contrast(background, _luminance(colour)) >= least, (part, colour)
    assert (background < 0.2) == (scheme == "dark")


# Of the tables of a page: whether one scrolls, names and words that are broken over lines, and the
# colours of text. Only what is longer than any word of a language may be broken.
READ_TABLES = """() => {
  const tables = [...document.querySelectorAll('.table-wrapper')];
  const cells = [...document.querySelectorAll('.table-wrapper td')];
  const names = [...document.querySelectorAll('.table-wrapper td:first-child code')];
  const lines = (node, start, end) => {
    const range = document.createRange();
    range.setStart(node, start); range.setEnd(node, end);
    return range.getClientRects().length;
  };
  const broken = [];
  for (const cell of cells) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node; node = walker.nextNode();)
      for (const word of node.data.matchAll(/(?<![^\\s(])\\p{L}{2,14}(?![^\\s.,;:)])/gu))
        if (lines(node, word.index, word.index + word[0].length) > 1) broken.push(word[0]);
  }
  return {
    scrolls: tables.some(t => t.scrollWidth > t.clientWidth),
    hidden: cells.filter(c => c.getBoundingClientRect().right > innerWidth).length,
    names: names.length,
    broken: [...broken, ...names.filter(n => n.getClientRects().length > 1).map(n => n.innerText)],
    colours: [...new Set(cells.map(c => getComputedStyle(c).color))],
  };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "device", [{"viewport": {"width": 1280, "height": 800}}, PHONE], ids=["laptop", "phone"]
)
def test_the_tables_of_settings_can_be_read(device: dict, scheme: str, open_site) -> None:
    seen = open_site(device, "docs/user/configuration", color_scheme=scheme)
    background = _luminance(seen.value("getComputedStyle(document.body).backgroundColor"))
    found = seen.value(READ_TABLES)
    assert not found["scrolls"] and found["hidden"] == 0
    assert found["names"] > 100 and found["broken"] == []
    for colour in found["colours"]:
        assert _contrast(background, _luminance(colour)) >= 4.5, colour


@DEVICES
def test_pictures_have_a_text_and_fit(device: dict, open_site, site: Path) -> None:
    seen = open_site(device)
    for name in ("index", "docs/user/launching", "docs/user/report", "docs/user/kubernetes"):
        seen.page.goto((site / f"{name}.html").as_uri())
        pictures = seen.value(
            "[...document.querySelectorAll('article img')].map(i => [i.alt, i.naturalWidth,"
            " i.getBoundingClientRect().right <= innerWidth])"
        )
        assert pictures, name
        assert all(len(alt) > 10 and width and fits for alt, width, fits in pictures), pictures
