"""Makes the pictures of `sumpter console` in docs/images anew, of a coordinator played by a script.

    python tests/pictures/console.py [FOLDER]

Needs Chromium on PATH (`apt-get install chromium`) and what `make setup` installs. The figures are
those of two jobs that share two servers: at the end, a server has died and a rank is late.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from playwright.sync_api import Browser, Page, sync_playwright
from report import IMAGES, PHONE, beside, save

from sumpter.console.access import Access
from sumpter.console.server import Address, Console
from sumpter.console.watch import Watcher
from sumpter.launch import top

LAPTOP = {"viewport": {"width": 1280, "height": 800}}
LOOKS = 240
# When the server dies, and from when on a rank is late.
DEATH, LATE = 150, 190
GBPS = 10.0


def main() -> None:
    """Writes every picture and prints its size."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    path = shutil.which("chromium") or sys.exit("no chromium on PATH: apt-get install chromium")
    with served() as (url, code), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        take(browser, url, code, folder)
        browser.close()


def take(browser: Browser, url: str, code: str, folder: Path) -> None:
    """Takes the pictures of the page at `url` into a folder."""
    laptop = _opened(browser, url, **LAPTOP, color_scheme="light")
    save(laptop.screenshot(), "console-laptop.png", folder)
    dark = _opened(browser, url, **LAPTOP, color_scheme="dark")
    dark.get_by_role("button", name="Unlock").click()
    dark.fill("#token", code)
    dark.keyboard.press("Enter")
    dark.wait_for_selector("#access:has-text('Lock')")
    dark.get_by_role("button", name="Drain server 5").click()
    save(dark.screenshot(), "console-laptop-dark.png", folder)
    phone = _opened(browser, url, **PHONE, color_scheme="light")
    parts = [phone.screenshot()]
    for place in (".panels", "#servers"):
        phone.evaluate(f"document.querySelector('{place}').scrollIntoView()")
        parts.append(phone.screenshot())
    save(beside(parts), "console-phone.png", folder)


@contextmanager
def served() -> Iterator[tuple[str, str]]:
    """A console of the played coordinator after all its looks: its address and its code."""
    looks = iter(range(LOOKS))
    last = [0]

    def fetch() -> str:
        last[0] = next(looks, last[0])
        return document(last[0])

    clock = [1_790_000_000.0]
    watcher = Watcher(fetch, 1.0, clock=lambda: clock[0])
    real, top.time = top.time, SimpleNamespace(monotonic=lambda: clock[0])
    try:
        for _ in range(LOOKS):
            clock[0] += 1.0
            watcher.look()
    finally:
        top.time = real
    # What is shown stays as it is.
    watcher.interval_s = 3600.0
    access = Access(dict, lambda settings: None, read_only=False, loopback=True)
    console = Console(Address("127.0.0.1", 0), watcher, access)
    console.start()
    try:
        watcher.interval_s = 1.0
        yield console.address.url, access.code
    finally:
        console.close()


def document(second: int) -> str:
    """What the coordinator says after so many seconds."""
    servers = [_server(number, second) for number in (5, 6) if number != 6 or second < DEATH]
    numbers = [server["member"] for server in servers]
    changed = "the server on cpu-2 was lost: connection closed" if second >= DEATH else ""
    jobs = [
        _job("resnet50", 4, 0.0, second, servers=numbers, epoch=len(changed) and 2 or 1)
        | {"last_change": changed},
        _job("bert-large", 2, 1.3, second, servers=numbers[:1], epoch=1),
    ]
    return json.dumps({"jobs": jobs, "servers": servers})


def _job(name: str, workers: int, phase: float, second: int, **more: object) -> dict:
    return {
        "name": name,
        "state": "running",
        "world_size": workers,
        "settings": {"partition_bytes": "262144", "credit_bytes": "auto", "tuner": "fixed"},
        "workers": [_worker(name, rank, phase, second) for rank in range(workers)],
        **more,
    }


def _goodput(phase: float, second: int) -> float:
    """Bytes a busy second: slower with a server less."""
    steady = 0.62e9 if second < DEATH else 0.47e9
    return steady * (1 + 0.05 * math.sin(second / 7 + phase) + 0.03 * math.sin(second * 1.7))


def _worker(name: str, rank: int, phase: float, second: int) -> dict:
    summed = sum(_goodput(phase, past) * 0.6 for past in range(second + 1))
    late_s = 0.18 * max(0, second - LATE)
    late = [
        {"rank": 0, "count": second, "seconds": 0.004 * second},
        {"rank": 1, "count": second, "seconds": 0.01 * second},
        {"rank": 3, "count": second, "seconds": 0.006 * second + late_s},
    ]
    counters = {
        "rounds": 160 * second + 1,
        "step": 4 * second + 1,
        "elapsed_s": second + 1,
        "tensor_bytes": summed,
        "busy_s": 0.6 * (second + 1),
        "bytes_sent_away": 1.4 * summed,
        "bytes_received_away": 1.38 * summed,
        "summed_bytes": 0.5 * summed,
        "wait_results_s": 0.4 * (second + 1),
        "wait_send_s": 0.15 * (second + 1),
        "drained_bytes": 0.18 * (second + 1) * 1e9,
        "queued_bytes": 3e6,
    }
    short = "gpu" if name == "resnet50" else "node"
    return {
        "rank": rank,
        "host": f"{short}-{rank + 1}",
        "machine": f"{short}-{rank + 1}",
        "bandwidth_gbps": GBPS,
        "stats": {"counters": counters, "late": late if name == "resnet50" else late[:2]},
    }


def _server(number: int, second: int) -> dict:
    summed = sum(_goodput(0.0, past) for past in range(second + 1))
    counters = {
        "elapsed_s": second + 1,
        "bytes_sent_away": summed,
        "bytes_received_away": summed,
        "summed_bytes": summed,
        "lane_memory_bytes": 90e6,
        "lane_waiting_partitions": 3,
    }
    host = f"cpu-{number - 4}"
    return {
        "member": number,
        "host": host,
        "machine": host,
        "bandwidth_gbps": GBPS,
        "stats": {"counters": counters, "late": []},
    }


def _opened(browser: Browser, url: str, **options: object) -> Page:
    page = browser.new_page(**options)
    page.goto(url)
    page.wait_for_selector("#jobs section")
    return page


if __name__ == "__main__":
    main()
