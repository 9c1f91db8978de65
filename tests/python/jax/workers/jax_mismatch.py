"""Ranks call one collective with arrays of different shapes inside jit."""

from __future__ import annotations

import os

import jax
import numpy as np

import sumpter.jax as sj

RANK = int(os.environ["RANK"])

sj.init()
try:
    jax.jit(lambda x: sj.all_reduce(x, name="differs"))(np.ones(3 + RANK)).block_until_ready()
except Exception as error:
    for part in ("MismatchError", "rank 0", "rank 1", "[3]", "[4]"):
        assert part in str(error), f"no {part} in {error}"
else:
    raise AssertionError("there was no error")
# The next calls match again.
result = jax.jit(lambda x: sj.all_reduce(x, sj.Sum, name="agrees"))(np.ones(3))
assert result.tolist() == [2.0, 2.0, 2.0], result
sj.shutdown()
