"""A rank under srun: checks the sum of each step until the test has seen enough."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import sumpter

FOLDER = Path(os.environ["TEST_FOLDER"])

sumpter.init()
rank, size = sumpter.rank(), sumpter.size()
step, over = 0, False
while not over:
    gradient = np.full(1 << 18, float(step + rank), dtype=np.float32)
    # The decision to stop is summed as well, so that all ranks take it in the same step.
    gradient[0] = rank == 0 and (FOLDER / "enough").exists()
    total = sumpter.push_pull(gradient, average=False, name="gradient")
    over = total[0] > 0
    expected = size * step + size * (size - 1) / 2
    assert (total[1:] == expected).all(), f"step {step}: {total[1:]} is not {expected}"
    step += 1
    if step % 20 == 0:
        (FOLDER / f"step.{rank}").write_text(str(step))
print(f"rank {rank} of {size} took its steps; pid {os.getpid()}")
sumpter.shutdown()
