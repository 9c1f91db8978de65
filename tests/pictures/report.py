"""Makes the pictures of `sumpter report` in docs/images anew, from files of this repository.

    python tests/pictures/report.py

Needs Chromium on PATH (`apt-get install chromium`) and what `make setup` installs.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from sumpter_lab import report

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
NETAI = ROOT / "tests" / "data" / "netai"
FILES = (
    NETAI / "resnet50.bk.log",
    ROOT / "lab/records/emulate-uniform/2026-11-22-n8.csv",
    ROOT / "lab/records/scheduling/2026-11-30-resnet50.json",
)
QUESTION = report.Question(
    workers=64,
    bandwidth_gbps=10.0,
    batch_time_s=0.12808580219559176,
    add_estimate=NETAI / "cuda_vec_add.log",
)
LAPTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def main() -> None:
    """Writes every picture and prints its size."""
    path = shutil.which("chromium") or sys.exit("no chromium on PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        report.write(report.make(FILES, QUESTION, title="ResNet-50 on 64 GPU machines"), file)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        laptop = browser.new_page(**LAPTOP)
        laptop.goto(file.as_uri())
        save(laptop.screenshot(), "report-laptop.png")
        save(_figure(laptop, "figure-1-1"), "whatif-by-bandwidth.png")
        save(_figure(laptop, "figure-3-2"), "report-links.png")
        dark = browser.new_page(**LAPTOP, color_scheme="dark")
        dark.goto(f"{file.as_uri()}#section-1")
        dark.evaluate("document.querySelector('.figures').scrollIntoView()")
        save(dark.screenshot(), "report-laptop-dark.png")
        phone = browser.new_page(**PHONE)
        phone.goto(file.as_uri())
        parts = [phone.screenshot()]
        for place in ("#section-1", "#figure-1-1-title"):
            phone.evaluate(f"document.querySelector('{place}').scrollIntoView()")
            parts.append(phone.screenshot())
        save(beside(parts), "report-phone.png")
        browser.close()


def _figure(page: Page, name: str) -> bytes:
    return page.locator(f"figure:has(#{name})").screenshot()


def beside(pictures: list[bytes], gap: int = 24) -> bytes:
    """The pictures of a phone's screen, one beside the other."""
    images = [Image.open(io.BytesIO(picture)) for picture in pictures]
    width = sum(image.width for image in images) + gap * (len(images) - 1)
    joined = Image.new("RGB", (width, images[0].height), "#8a9097")
    left = 0
    for image in images:
        joined.paste(image, (left, 0))
        left += image.width + gap
    stream = io.BytesIO()
    joined.save(stream, "PNG")
    return stream.getvalue()


def save(picture: bytes, name: str, folder: Path = IMAGES) -> None:
    """With 128 colours: plots and text lose nothing that is seen, and a picture stays small."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(folder / name, optimize=True)
    print(f"{name}: {(folder / name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
