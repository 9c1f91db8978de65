"""Training frameworks that set up torch.distributed themselves train over the backend.

Each example ends with the weights that it has with Gloo.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sumpter.launch.attendant import free_port

ROOT = Path(__file__).resolve().parents[3]
WORKER = Path(__file__).with_name("workers") / "c10d" / "with_both_backends.py"
# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 900

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SUMPTER_RUN = ("sumpter", "run", "-n", "2", "-s", "1", "--", sys.executable)


@pytest.mark.parametrize(
    ("launcher", "example", "packages"),
    [
        (SUMPTER_RUN, "accelerate_digits.py", ["accelerate"]),
        (TORCHRUN, "trainer_tiny.py", ["accelerate", "transformers"]),
        (SUMPTER_RUN, "lightning_digits.py", ["lightning"]),
    ],
    ids=["accelerate", "transformers", "lightning"],
)
def test_a_framework_trains_as_with_gloo(
    launcher: tuple[str, ...], example: str, packages: list[str], tmp_path: Path
) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    script = (str(WORKER), str(ROOT / "examples" / example), str(tmp_path), str(free_port()))
    ended = subprocess.run(
        (sys.executable, "-m", *launcher, *script),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stdout
    for backend in ("sumpter", "gloo"):
        assert f"all 2 workers hold the same weights over {backend}: True" in ended.stdout
    ours, theirs = (torch.load(tmp_path / f"{name}.pt") for name in ("sumpter", "gloo"))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, msg=lambda text, n=name: f"{n}: {text}")
