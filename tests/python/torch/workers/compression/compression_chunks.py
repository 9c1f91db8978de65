"""Chunks of six KiB cut the blocks of a compressed tensor: an error, and others go on."""

from __future__ import annotations

import numpy as np

import sumpter
from common import RANK, WORLD_SIZE, raises

sumpter.init()
own = np.ones(5000, np.float32)
for _ in range(2):
    with raises(
        sumpter.MismatchError, "allreduce.x", f"rank {RANK}", "codec int8", "4096 bytes", "6144"
    ):
        sumpter.push_pull(own, name="x", compression="int8")
assert sumpter.push_pull(own, name="y", average=False).sum() == 5000 * WORLD_SIZE
halves = own.astype(np.float16)
assert sumpter.push_pull(halves, name="z", average=False, compression="fp16")[0] == WORLD_SIZE
sumpter.shutdown()
