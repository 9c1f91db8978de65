"""The page of `sumpter report` in a real browser, on a laptop and on a phone.

Needs Chromium, which no package of Python brings: `apt-get install chromium`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import fake_trace
from browser import LAPTOP, PHONE, launched
from sumpter.profiles import save
from sumpter_lab import profiles, report
from sumpter_lab.report import theme

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "lab" / "records"
NASTY = "<img src=x onerror=alert(1)><script>alert(1)</script>"


@dataclass
class View:
    """An open page, and all that it asked for or complained about."""

    page: object
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def value(self, expression: str) -> object:
        return self.page.evaluate(expression)


def _until(view: View, condition: str) -> None:
    """Waits, without what the page's policy forbids: playwright would evaluate a text in it."""
    for _ in range(600):
        if view.value(condition):
            return
        view.page.wait_for_timeout(100)
    raise AssertionError(f"never came true: {condition}")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    yield from launched("pages of sumpter report")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a section of every kind, and text that would run if it could."""
    folder = tmp_path_factory.mktemp("page")
    save(profiles.published("resnet18"), folder / "run.profile.json")
    (folder / "run.pftrace").write_bytes(fake_trace.HEAD)
    files = [folder / "run.profile.json", folder / "run.pftrace"]
    files += [
        RECORDS / "emulate-uniform/2026-11-22-n8.csv",
        RECORDS / "scheduling/2026-11-30-resnet50.json",
        RECORDS / "tenants/2026-11-25-shaped.json",
        RECORDS / "chaos/2026-11-22.json",
        RECORDS / "allreduce-latency/2026-11-26-n2-1.csv",
        RECORDS / "tune/2026-11-30-switch.json",
        RECORDS / "papers/2026-11-30-phub-fig16.json",
    ]
    with pytest.MonkeyPatch.context() as patch:
        made = fake_trace.trace(tensor=NASTY)
        patch.setitem(sys.modules, "sumpter.trace", fake_trace.module(made))
        page = report.make(files, report.Question(bandwidth_gbps=400.0), title=NASTY)
    report.write(page, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def open_page(browser, file: Path) -> Iterator[Callable[..., View]]:
    """Opens the page in a context, with everything that leaves it noted and refused."""
    contexts = []

    def open_page(device: dict, **options: object) -> View:
        context = browser.new_context(**device, **options)
        contexts.append(context)
        seen = View(context.new_page())

        def decide(route) -> None:
            url = route.request.url
            seen.requests.append(url)
            route.continue_() if url == file.as_uri() else route.abort()

        context.route("**/*", decide)
        seen.page.on("console", lambda message: seen.complaints.append(message.text))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.on("dialog", lambda dialog: seen.complaints.append(dialog.message))
        seen.page.goto(file.as_uri())
        _until(
            seen,
            "[...document.querySelectorAll('.plot[id]')].every(p => p.querySelector('.main-svg'))",
        )
        return seen

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def view(open_page) -> Callable[..., View]:
    """The page on a device, opened once for the tests that only look."""
    opened: dict[str, View] = {}

    def view(device: dict, **options: object) -> View:
        key = repr((device, options))
        if key not in opened:
            opened[key] = open_page(device, **options)
        return opened[key]

    return view


DEVICES = pytest.mark.parametrize("device", [LAPTOP, PHONE], ids=["laptop", "phone"])


@DEVICES
def test_the_page_asks_for_nothing_and_complains_of_nothing(device, view, file: Path) -> None:
    seen = view(device)
    assert seen.requests == [file.as_uri()]
    assert seen.complaints == []


def test_the_policy_refuses_what_an_error_would_let_through(open_page) -> None:
    seen = open_page(PHONE)
    seen.page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s); document.body.insertAdjacentHTML('beforeend',"
        ' \'<img src="https://example.org/x.png" onerror="window.ran = 1">\'); }'
    )
    seen.page.wait_for_timeout(200)
    assert seen.value("window.ran") is None
    assert len(seen.requests) == 1, "the policy stops the request before it is made"
    assert len(seen.complaints) >= 2


@DEVICES
def test_every_plot_is_drawn_within_the_screen(device, view) -> None:
    seen = view(device)
    width = device["viewport"]["width"]
    assert seen.value("document.documentElement.scrollWidth") == width
    outside = seen.value(
        "[...document.querySelectorAll('figure, .plot, .main-svg')].filter(e => {"
        " const r = e.getBoundingClientRect();"
        " return r.width < 200 || r.height < 80 || r.left < 0 || r.right > innerWidth + 1;"
        "}).map(e => e.id || e.className)"
    )
    assert outside == []
    drawn = seen.value(
        "[...document.querySelectorAll('.plot[id]')].filter(p =>"
        " !p.querySelector('.trace path, .point path, .hm image')).map(p => p.id)"
    )
    assert drawn == [], "plots without a mark"


@DEVICES
def test_no_text_is_too_small_and_none_is_cut_off(device, view) -> None:
    seen = view(device)
    small = seen.value(
        "[...document.querySelectorAll('p, li, td, th, dd, dt, svg text')].filter(e =>"
        " e.textContent.trim() && parseFloat(getComputedStyle(e).fontSize) < 8)"
        ".map(e => e.textContent)"
    )
    assert small == []
    cut = seen.value(
        "[...document.querySelectorAll('.plot[id]')].flatMap(p => {"
        " const b = p.getBoundingClientRect();"
        " return [...p.querySelectorAll('.ytick text, .legendtext, .xtitle, .ytitle')]"
        "  .filter(t => { const r = t.getBoundingClientRect();"
        "   return r.left < b.left - 2 || r.right > b.right + 2 || r.top < b.top - 2 ||"
        "    r.bottom > b.bottom + 2; })"
        "  .map(t => p.id + ': ' + t.textContent); })"
    )
    assert cut == []


@DEVICES
def test_no_row_of_a_table_is_a_screen_tall(device, view) -> None:
    seen = view(device)
    seen.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    try:
        tall = seen.value(
            "[...document.querySelectorAll('tr')].filter(r => r.offsetHeight > innerHeight / 5)"
            ".map(r => r.offsetHeight + ' px: ' + r.textContent)"
        )
    finally:
        seen.value("document.querySelectorAll('details').forEach(d => { d.open = false; })")
    assert tall == []


@DEVICES
def test_no_two_ticks_of_an_axis_have_the_same_label(device, view) -> None:
    axes = view(device).value(
        "[...document.querySelectorAll('.plot[id]')].flatMap(p => ['x', 'y'].map(axis =>"
        " [...p.querySelectorAll('.' + axis + 'tick text')].map(t => t.textContent)))"
    )
    assert any("%" in label for labels in axes for label in labels)
    assert [labels for labels in axes if len(set(labels)) < len(labels)] == []


def _luminance(red: int, green: int, blue: int) -> float:
    """Of WCAG 2, from 0 to 1."""
    parts = [part / 255 for part in (red, green, blue)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(first: float, second: float) -> float:
    return (max(first, second) + 0.05) / (min(first, second) + 0.05)


def _of_hex(code: str) -> float:
    return _luminance(*(int(code.strip()[i : i + 2], 16) for i in (1, 3, 5)))


def _of_rgb(code: str) -> float:
    return _luminance(*map(int, re.findall(r"\d+", code)[:3]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_colours_stand_out(scheme: str, view) -> None:
    seen = view(LAPTOP, color_scheme=scheme)
    page = _of_rgb(seen.value("getComputedStyle(document.body).backgroundColor"))
    text = _of_rgb(seen.value("getComputedStyle(document.querySelector('.xtick text')).fill"))
    assert (page < text) == (scheme == "dark")
    assert _contrast(page, text) > 7
    panel = _of_hex(
        seen.value("getComputedStyle(document.documentElement).getPropertyValue('--panel')")
    )
    for light, dark in theme.DARK.items():
        code = dark if scheme == "dark" else light
        assert _contrast(_of_hex(code), panel) >= 3, code


def test_plots_follow_when_the_page_turns_dark(open_page) -> None:
    seen = open_page(LAPTOP, color_scheme="light")
    line = "document.querySelector('.scatterlayer .js-line').style.stroke"
    before = seen.value(line)
    seen.page.emulate_media(color_scheme="dark")
    _until(seen, f"{line} !== '{before}'")
    assert _of_rgb(seen.value(line)) > _of_rgb(before)


@DEVICES
def test_who_does_not_see_the_plots_reads_them(device, view) -> None:
    seen = view(device)
    plots = seen.value(
        "[...document.querySelectorAll('figure')].map(f => [f.querySelector('.plot')"
        ".getAttribute('aria-label'), f.querySelector('h3').textContent,"
        " f.querySelectorAll('details tbody tr').length])"
    )
    assert plots
    assert all(len(alt) > 20 and title and rows for alt, title, rows in plots)
    headings = seen.value("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(headings, headings[1:], strict=False))
    assert seen.value("document.documentElement.lang") == "en"
    ids = seen.value("[...document.querySelectorAll('[id]')].map(e => e.id)")
    own = [one for one in ids if one.startswith(("figure-", "section-"))]
    assert len(own) == len(set(own))


def test_a_timeline_can_be_zoomed_with_the_mouse_and_scrolled_by_finger(view) -> None:
    for device, mode in ((LAPTOP, "zoom"), (PHONE, False)):
        seen = view(device)
        assert seen.value("document.querySelector('.plot[id]').layout.dragmode") == mode
