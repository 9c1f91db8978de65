"""Links within a built site: each leads to a place that exists, and none needs a network."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINKING = {"href", "src"}
# What a browser loads to show a page.
_LOADING = {"link", "script", "img", "iframe"}


class _Page(HTMLParser):
    """The places of a page, what it links and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if not value:
                continue
            if name == "id":
                self.places.add(value)
            elif name in _LINKING:
                self.links.add(value)
                if tag in _LOADING:
                    self.loads.add(value)


def wrong(site: Path) -> list[str]:
    """What is wrong with the links of a site, a line each."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.resolve().rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name}: {link} is no place" for link in _broken(path, page, pages)]
        found += [f"{name}: {link} needs a network" for link in sorted(page.loads) if _host(link)]
    return found


def _host(link: str) -> str:
    return urlsplit(link).netloc


def _broken(path: Path, page: _Page, pages: dict[Path, _Page]) -> list[str]:
    found = []
    for link in sorted(page.links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        place = unquote(parts.fragment)
        if target in pages:
            if place and place not in pages[target].places:
                found.append(link)
        elif not target.is_file():
            found.append(link)
    return found
