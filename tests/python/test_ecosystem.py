"""Training frameworks that bring their own distributed setup train over the backend.

Each example is started as a user starts it, then with Gloo: both end with the same weights.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 900

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SUMPTER_RUN = ("-m", "sumpter", "run", "-n", "2", "-s", "1", "--", sys.executable)


def train(*command: str, save: Path) -> dict[str, torch.Tensor]:
    """The weights that an example leaves behind."""
    ended = subprocess.run(
        (sys.executable, *command, "--save", str(save)),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stdout
    assert "all 2 workers hold the same weights: True" in ended.stdout, ended.stdout
    return torch.load(save)


@pytest.mark.parametrize(
    ("launcher", "example", "packages"),
    [
        (SUMPTER_RUN, "examples/accelerate_digits.py", ["accelerate"]),
        (TORCHRUN, "examples/trainer_tiny.py", ["accelerate", "transformers"]),
        (SUMPTER_RUN, "examples/lightning_digits.py", ["lightning"]),
    ],
    ids=["accelerate", "transformers", "lightning"],
)
def test_a_framework_trains_as_with_gloo(
    launcher: tuple[str, ...], example: str, packages: list[str], tmp_path: Path
) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    ours = train(*launcher, example, save=tmp_path / "sumpter.pt")
    theirs = train(*TORCHRUN, example, "--backend", "gloo", save=tmp_path / "gloo.pt")
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, msg=lambda text, n=name: f"{n}: {text}")
