"""The examples do what they promise, started as a user starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 900

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


def sumpter_run(*options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "sumpter", "run", *options, "--", sys.executable)


def run(*command: str) -> str:
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.parametrize(
    "command",
    [
        (*TORCHRUN, "examples/digits.py"),
        (*TORCHRUN, "examples/digits_horovod.py"),
        (*sumpter_run("-n", "4", "-s", "2"), "examples/digits.py"),
        (sys.executable, "examples/digits_horovod.py"),
        (*sumpter_run("-n", "3", "--min-workers", "2"), "examples/elastic_digits.py", "--kill"),
    ],
    ids=["ddp-torchrun", "horovod-torchrun", "ddp-servers", "horovod-alone", "elastic-killed"],
)
def test_digits_reaches_its_accuracy(command: tuple[str, ...]) -> None:
    said = re.findall(r"accuracy on 360 held-out digits: ([\d.]+)%", run(*command))
    assert len(said) == 1
    assert float(said[0]) >= 97.0


def test_tiny_gpt_learns_and_writes() -> None:
    output = run(*sumpter_run("-n", "2", "-s", "1"), "examples/tiny_gpt.py")
    losses = re.search(r"loss per character: ([\d.]+) at first, ([\d.]+) at last", output)
    assert losses is not None, output
    assert float(losses[2]) < 0.7 * float(losses[1])
    assert "def read(self, " in output


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_fit_on_three_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 150
