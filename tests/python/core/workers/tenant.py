"""One job among others: fits a line by gradients that all its ranks sum. Needs no torch.

It trains until a file appears that the test makes when it has seen all jobs at work, and leaves
what it has learned.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import sumpter

LEAST_STEPS = 200

folder, job = Path(os.environ["TEST_FOLDER"]), os.environ["SUMPTER_JOB"]
sumpter.init()
rank, size = sumpter.rank(), sumpter.size()
slope = float(len(job))
inputs = np.linspace(-1.0, 1.0, 64).reshape(-1, size)[:, rank]
weight, step = np.zeros(1 << 16), 0
while True:
    gradient = np.full_like(weight, np.mean(2.0 * inputs**2)) * (weight - slope)
    # The decision to stop is summed as well, so that all ranks take it in the same step.
    gradient[0] = float(step >= LEAST_STEPS and (folder / "stop").exists())
    total = sumpter.push_pull(gradient, average=False, name="gradient")
    if total[0] == size:
        break
    weight[1:] -= 0.5 * total[1:] / size
    step += 1
    if step == LEAST_STEPS:
        (folder / f"{job}.{rank}.busy").touch()
sumpter.shutdown()
np.testing.assert_allclose(weight[1:], slope, rtol=1e-9)
(folder / f"{job}.{rank}.done").write_text(str(weight[1]))
