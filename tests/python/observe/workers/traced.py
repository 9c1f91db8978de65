"""Sums the same tensors step after step, the highest rank late, until the test has seen enough."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import sumpter

# Which step the test waits for, and by how much the last rank is late in each.
STEPS, LATE_S = 8, 0.02

folder = Path(os.environ["TEST_FOLDER"])
sumpter.init()
rank, size = sumpter.rank(), sumpter.size()
once = sumpter.push_pull(np.ones(4), average=False, name="once")
layers = [np.full(3 << 20, float(rank + 1), dtype=np.float32) for _ in range(2)]
step, stop = 0, False
while not stop:
    if rank == size - 1:
        time.sleep(LATE_S)
    handles = [
        sumpter.push_pull_async(layer, average=False, name=f"layer{number}")
        for number, layer in enumerate(layers)
    ]
    totals = [sumpter.synchronize(handle) for handle in handles]
    assert all(total[0] == size * (size + 1) / 2 for total in totals)
    step += 1
    wish = np.array([float((folder / "stop").exists())])
    stop = bool(sumpter.push_pull(wish, average=False, name="wish")[0] == size)
    if step == STEPS and rank == 0:
        with (folder / "busy").open("wb"):
            pass
sumpter.shutdown()
