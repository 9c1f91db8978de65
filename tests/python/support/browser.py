"""A real browser for tests of pages: any Chromium or Chrome on PATH, driven by playwright.

No package of Python brings one: `apt-get install chromium`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LAPTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def launched(tested: str) -> Iterator[object]:
    """A browser while the generator lives; without one the test is skipped, and told why."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: apt-get install chromium, to test {tested}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, and in containers, Chromium cannot make its sandbox; the pages are our own.
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()
