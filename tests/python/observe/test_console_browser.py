"""The page of `sumpter console` in a real browser: on a laptop and a phone, light and dark.

Needs Chromium, which no package of Python brings: `apt-get install chromium`.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, repeat
from pathlib import Path
from types import ModuleType

import pytest

from browser import LAPTOP, PHONE, launched
from sumpter import _native
from sumpter._failure import Failure
from sumpter.console import actions
from sumpter.console.access import Access
from sumpter.console.server import Address, Console
from sumpter.console.watch import Watcher

PICTURES = Path(__file__).resolve().parents[2] / "pictures"
TOKEN = "a token that only tests use"
NASTY = "<img src=x onerror=window.ran=1><script>window.ran=1</script>\u202e" + "long" * 60
# Only so that a hang fails; the page looks every 0.2 s.
TRIES = 300
DEVICES = pytest.mark.parametrize("device", [LAPTOP, PHONE], ids=["laptop", "phone"])


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    """The script that makes the guide's pictures, which plays a coordinator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PICTURES))
        spec = importlib.util.spec_from_file_location("pictures_console", PICTURES / "console.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    yield from launched("the page of sumpter console")


@dataclass
class View:
    """An open page, and all that it asked for or complained about."""

    page: object
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def value(self, expression: str) -> object:
        return self.page.evaluate(expression)

    def until(self, condition: str) -> None:
        """Waits, without what the page's policy forbids: playwright would evaluate a text in it."""
        for _ in range(TRIES):
            if self.value(condition):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"never came true: {condition}: {self.page.inner_text('body')}")

    def shows(self, text: str) -> None:
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def focused(self) -> str:
        return str(
            self.value(
                "(e => e.getAttribute('aria-label') || document.getElementById("
                " e.getAttribute('aria-labelledby'))?.textContent || e.id || e.textContent)"
                "(document.activeElement)"
            )
        )


class Played:
    """A console of a played coordinator, and the commands that it was given."""

    def __init__(self, documents: Iterator[str]) -> None:
        # The last of these for ever; what stands still has no rates.
        self.said: Iterator[str] | Exception = documents
        self.done: list[tuple[object, ...]] = []
        self.console: Console | None = None
        self.address = Address("127.0.0.1", 0)
        self.access: Access | None = None

    def fetch(self) -> str:
        if isinstance(self.said, Exception):
            raise self.said
        return next(self.said)

    def start(self, *, read_only: bool = False) -> None:
        """Serves, at the address of the last time."""
        watcher = Watcher(self.fetch, 0.2)
        watcher.look()
        self.access = Access(dict, self._check, read_only=read_only, loopback=True)
        self.console = Console(self.address, watcher, self.access, job="")
        self.address = self.console.address
        self.console.start()

    def stop(self) -> None:
        if self.console is not None:
            self.console.close()

    def _check(self, settings: dict[str, str]) -> None:
        if settings["token"] != TOKEN:
            raise _native.AuthError("token refused")

    def drain(self, who: str, settings: dict[str, str]) -> actions.Done:
        self.done.append(("drain", who, settings))
        if who == "6":
            raise Failure("no server is called 6")
        return actions.Done("", (f"server {who} is drained",))

    def tune(
        self, changes: dict[str, str], settings: dict[str, str], *, job: str | None, reset: bool
    ) -> actions.Done:
        self.done.append(("tune", job, changes, reset))
        if changes.get("credit") == "1":
            raise _native.ConfigError("credit_bytes: 1 is under a partition")
        return actions.Done("", (f"job {job} from epoch 2 on: partition_bytes=1048576",))


@pytest.fixture
def play(pictures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Played]]:
    """Plays a coordinator, by default one of two jobs and two servers."""
    played: list[Played] = []

    def play(document: str = "", **options: bool) -> Played:
        one = Played(repeat(document) if document else map(pictures.document, count(100)))
        played.append(one)
        monkeypatch.setattr(actions, "drain", one.drain)
        monkeypatch.setattr(actions, "tune", one.tune)
        one.start(**options)
        return one

    yield play
    for one in played:
        one.stop()


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., View]]:
    """Opens a console in a context of its own, with every request noted."""
    contexts = []

    def open_page(played: Played, device: dict = LAPTOP, **options: object) -> View:
        context = browser.new_context(**device, **options)
        contexts.append(context)
        seen = View(context.new_page())

        def note(route) -> None:
            seen.requests.append(route.request.url)
            route.continue_()

        context.route("**/*", note)
        seen.page.on("console", lambda message: seen.complaints.append(message.text))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.on("dialog", lambda dialog: seen.complaints.append(dialog.message))
        seen.page.goto(played.address.url)
        seen.until("document.getElementById('connection').textContent !== 'Connecting ...'")
        return seen

    yield open_page
    for context in contexts:
        context.close()


def nasty(pictures: ModuleType) -> str:
    """A coordinator whose members choose names that would run if they could."""
    document = json.loads(pictures.document(200))
    for job in document["jobs"]:
        job |= {"name": f"{NASTY}{job['name']}", "failure": NASTY, "last_change": NASTY}
        job |= {"stall": {"message": NASTY}, "settings": {NASTY: NASTY}, "state": NASTY}
        for worker in job["workers"]:
            worker |= {"host": NASTY, "rack": NASTY}
    for server in document["servers"]:
        server |= {"host": NASTY}
    return json.dumps(document)


@DEVICES
def test_names_of_members_do_not_run_and_do_not_widen_the_page(
    device, play, open_page, pictures
) -> None:
    seen = open_page(play(nasty(pictures)), device)
    seen.shows("<img src=x onerror=window.ran=1><script>")
    assert seen.value("window.ran") is None
    assert seen.value("document.querySelectorAll('img, #jobs script').length") == 0
    assert seen.value("document.documentElement.scrollWidth") == device["viewport"]["width"]
    assert seen.complaints == []


@DEVICES
def test_the_page_fits_is_drawn_and_asks_only_its_console(device, play, open_page) -> None:
    played = play()
    seen = open_page(played, device)
    seen.until("document.querySelector('path.goodput').getAttribute('d').length > 10")
    assert seen.value("document.documentElement.scrollWidth") == device["viewport"]["width"]
    assert all(url.startswith(played.address.url) for url in seen.requests)
    label = seen.value("document.querySelector('.chart svg').getAttribute('aria-label')")
    assert re.match(r"Goodput of the last 5 minutes: now [\d.]+ Gb/s, from ", label)
    for text in ("resnet50", "bert-large", "CPU machines (k)", "rank 1", "gpu-4", "cpu-2"):
        seen.shows(text)
    small = seen.value(
        "[...document.querySelectorAll('button, input, select')].filter(e => e.offsetHeight &&"
        " (e.offsetHeight < 24 || e.offsetWidth < 24)).map(e => e.outerHTML)"
    )
    assert small == []
    outside = seen.value(
        "[...document.querySelectorAll('button')].filter(e => e.offsetWidth &&"
        " e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML)"
    )
    assert outside == [], "no button needs scrolling sideways"
    assert seen.complaints == []


def test_the_policy_refuses_what_an_error_would_let_through(play, open_page) -> None:
    seen = open_page(play())
    seen.value(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s); document.body.insertAdjacentHTML('beforeend',"
        ' \'<img src="https://example.org/x.png" onerror="window.ran = 1">\'); })()'
    )
    seen.page.wait_for_timeout(200)
    assert seen.value("window.ran") is None
    assert not [url for url in seen.requests if "example.org" in url]
    assert len(seen.complaints) >= 2


def test_every_control_is_reached_by_keyboard_in_order_and_seen(play, open_page) -> None:
    seen = open_page(play())
    order = []
    for _ in range(30):
        seen.page.keyboard.press("Tab")
        if seen.value("document.activeElement === document.body"):
            break
        order.append(seen.focused())
        ring = seen.value(
            "(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth))"
            "(getComputedStyle(document.activeElement))"
        )
        assert ring >= 2, order[-1]
    assert order == [
        *("Skip to the jobs", "pause", "access"),
        *("Tune job resnet50", "Workers", "Tune job bert-large", "Workers"),
        *("Servers", "Drain server 5 on cpu-1", "Drain server 6 on cpu-2"),
        "Epochs, faults and other events",
    ]


@DEVICES
def test_a_server_is_drained_by_keyboard_after_the_token_and_a_question(
    device, play, open_page
) -> None:
    played = play()
    seen = open_page(played, device)
    press = seen.page.keyboard.press
    button = "button[aria-label='Drain server 5 on cpu-1']"
    seen.page.focus(button)
    press("Enter")
    seen.until("document.getElementById('unlocking').open")
    press("Escape")
    seen.until("!document.getElementById('unlocking').open")
    assert seen.focused() == "Drain server 5 on cpu-1"
    press("Enter")
    assert seen.focused() == "token"
    seen.page.keyboard.type("wrong")
    press("Enter")
    seen.shows("token refused")
    assert seen.value("document.getElementById('token').value") == ""
    assert seen.focused() == "token"
    seen.page.keyboard.type(TOKEN)
    press("Enter")
    seen.until("document.getElementById('draining').open")
    seen.shows("Server 5 on cpu-1 leaves all jobs")
    # What does no harm has the focus.
    assert seen.focused() == "Cancel"
    press("Escape")
    seen.until("!document.getElementById('draining').open")
    assert played.done == []
    seen.page.focus(button)
    press("Enter")
    press("Tab")
    assert seen.focused() == "Drain"
    press("Enter")
    seen.shows("server 5 is drained")
    assert played.done == [("drain", "5", {"token": TOKEN})]
    # A refused one is said in the dialog.
    seen.page.click("button[aria-label='Drain server 6 on cpu-2']")
    seen.page.click("#draining .grave")
    seen.shows("no server is called 6")
    press("Escape")
    posts = [url for url in seen.requests if "token" in url.lower() or TOKEN in url]
    assert posts == [] and seen.page.context.cookies() == []
    assert TOKEN not in str(seen.value("document.documentElement.outerHTML"))
    assert TOKEN not in str(seen.value("JSON.stringify([{...sessionStorage}, {...localStorage}])"))


def test_the_code_unlocks_until_the_page_is_locked(play, open_page) -> None:
    played = play()
    seen = open_page(played)
    seen.page.click("#access")
    seen.page.keyboard.type(played.access.code)
    seen.page.keyboard.press("Enter")
    seen.until("document.getElementById('access').textContent === 'Lock'")
    seen.page.reload()
    seen.until("document.getElementById('access').textContent === 'Lock'")
    seen.page.click("#access")
    seen.shows("The buttons are locked.")
    seen.page.reload()
    seen.shows("resnet50")
    assert seen.value("document.getElementById('access').textContent") == "Unlock"


def test_a_job_is_tuned_and_a_refusal_is_said(play, open_page) -> None:
    played = play()
    seen = open_page(played, PHONE)
    seen.page.click("button[aria-label='Tune job resnet50']")
    seen.page.fill("#token", TOKEN)
    seen.page.keyboard.press("Enter")
    seen.shows("Partition (now 256 KiB)")
    seen.page.fill("#credit", "1")
    seen.page.keyboard.press("Enter")
    seen.shows("credit_bytes: 1 is under a partition")
    seen.page.fill("#credit", "")
    seen.page.fill("#partition", "1MiB")
    seen.page.select_option("#tuner", "fixed")
    seen.page.click("#tuning .main")
    seen.shows("job resnet50 from epoch 2 on")
    assert played.done[1:] == [("tune", "resnet50", {"partition": "1MiB", "tuner": "fixed"}, False)]


def test_a_coordinator_that_goes_away_is_told_and_comes_back_by_itself(
    play, open_page, pictures
) -> None:
    played = play()
    seen = open_page(played)
    played.said = _native.SumpterError("nothing listens at 10.0.0.1:7700")
    seen.shows("No figures from the coordinator: nothing listens at 10.0.0.1:7700")
    seen.shows("resnet50")
    alert = "document.querySelector('#trouble[role=alert]').hidden"
    assert seen.value(alert) is False
    played.said = map(pictures.document, count(200))
    seen.until(alert)
    for text in ("lost the coordinator", "the coordinator answers again", "server 6 on cpu-2"):
        seen.shows(text)


def test_a_console_that_is_started_again_is_found_by_the_page(play, open_page) -> None:
    played = play()
    seen = open_page(played)
    seen.page.click("#access")
    seen.page.fill("#token", TOKEN)
    seen.page.keyboard.press("Enter")
    seen.until("document.getElementById('access').textContent === 'Lock'")
    played.stop()
    seen.shows("The console does not answer: start sumpter console again")
    played.start()
    seen.until("document.getElementById('trouble').hidden")
    # The new one knows no page.
    seen.page.click("button[aria-label='Tune job resnet50']")
    seen.page.fill("#partition", "1MiB")
    seen.page.keyboard.press("Enter")
    seen.shows("locked: give the job's token first")
    assert played.done == []


def test_jobs_come_and_go_and_without_one_the_page_says_how_to_start_one(
    play, open_page, pictures
) -> None:
    played = play(json.dumps({"jobs": [], "servers": []}))
    seen = open_page(played)
    seen.shows("No job runs. Start one: sumpter run -n 2 -s 1 -- python train.py")
    document = json.loads(pictures.document(100))
    played.said = repeat(json.dumps(document))
    seen.until("document.querySelectorAll('#jobs > section').length === 2")
    assert seen.value("document.getElementById('idle').hidden")
    document["jobs"][1] |= {"over": True, "failure": "rank 1 was lost"}
    played.said = repeat(json.dumps(document))
    seen.shows("bert-large: failed: rank 1 was lost")
    assert seen.value("[...document.querySelectorAll('h2.name')].map(e => e.textContent)") == [
        "resnet50"
    ]


def test_a_read_only_page_has_no_buttons_that_change_anything(play, open_page) -> None:
    seen = open_page(play(read_only=True))
    seen.shows("read-only")
    shown = "[...document.querySelectorAll('main button, #access')].filter(e => e.offsetWidth)"
    assert seen.value(f"{shown}.length") == 0


def test_focus_rests_while_figures_change_and_a_pause_asks_nothing(
    play, open_page, pictures
) -> None:
    played = play()
    seen = open_page(played)
    button = "button[aria-label='Drain server 5 on cpu-1']"
    seen.page.focus(button)
    for second in (111, 112, 113):
        played.said = repeat(pictures.document(second))
        seen.until(f"document.body.innerText.includes('{4 * second + 1}')")
        assert seen.focused() == "Drain server 5 on cpu-1"
    seen.page.click("#pause")
    seen.shows("Paused")
    seen.page.wait_for_timeout(300)
    asked = len(seen.requests)
    seen.page.wait_for_timeout(700)
    assert len(seen.requests) == asked
    seen.page.click("#pause")
    seen.shows("Live, every 0.2 s")


def test_what_screen_readers_are_told(play, open_page) -> None:
    seen = open_page(play())
    assert seen.value("document.documentElement.lang") == "en"
    live = "[...document.querySelectorAll('[role=status], [role=alert], [role=log]')]"
    assert seen.value(f"{live}.length") >= 6
    unnamed = seen.value(
        "[...document.querySelectorAll('section, dialog, .scroll, svg')].filter(e =>"
        " !e.getAttribute('aria-label') && !document.getElementById("
        " e.getAttribute('aria-labelledby'))).map(e => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
    unlabelled = seen.value(
        "[...document.querySelectorAll('input, select')].filter(e => !e.labels.length)"
        ".map(e => e.id)"
    )
    assert unlabelled == []
    levels = seen.value(
        "[...document.querySelectorAll('body > :not(dialog) h1, main h2, main h3')]"
        ".map(h => +h.tagName[1])"
    )
    assert all(b - a <= 1 for a, b in zip([1, *levels], levels, strict=False)), levels
    ids = seen.value("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def _luminance(colour: str) -> float:
    """Of WCAG 2, from 0 to 1."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_buttons_and_curves_stand_out(scheme: str, play, open_page, pictures) -> None:
    played = play()
    seen = open_page(played, color_scheme=scheme)
    played.said = map(pictures.document, count(200))
    seen.shows("server 6 on cpu-2 was lost")
    page = seen.value("getComputedStyle(document.body).backgroundColor")
    panel = seen.value("getComputedStyle(document.querySelector('.panel')).backgroundColor")
    assert (_luminance(page) < 0.2) == (scheme == "dark")
    for place, kind, ground, least in (
        ("body", "color", page, 7.0),
        ("dt", "color", page, 4.5),
        (".state", "color", page, 4.5),
        ("[data-kind=fault] .kind", "color", page, 4.5),
        ("[data-kind=change] .kind", "color", page, 4.5),
        ("#access", "borderTopColor", page, 3.0),
        (".key", "color", panel, 4.5),
        (".scale", "color", panel, 4.5),
        ("path.goodput", "stroke", panel, 3.0),
        ("path.optimum", "stroke", panel, 3.0),
        (".bar div", "backgroundColor", panel, 3.0),
    ):
        colour = seen.value(f"getComputedStyle(document.querySelector('{place}')).{kind}")
        pair = sorted([_luminance(ground), _luminance(colour)])
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= least, (place, colour, ground)


def test_the_guides_pictures_are_made_as_the_page_looks(browser, pictures, tmp_path: Path) -> None:
    with pictures.served() as (url, code):
        pictures.take(browser, url, code, tmp_path)
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    guide = (PICTURES.parents[1] / "docs" / "user" / "console.md").read_text()
    assert set(sizes) == set(re.findall(r"console-[\w-]+\.png", guide))
    assert all(10_000 < size < 100_000 for size in sizes.values()), sizes
