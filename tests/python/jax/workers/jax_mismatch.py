"""Ranks call one collective with other shapes inside jit, and collectives in another order."""

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


def reduce() -> None:
    sj.all_reduce(np.ones(3))


def send() -> None:
    jax.jit(lambda x: sj.broadcast(x))(np.ones(5)).block_until_ready()


try:
    for call in (reduce, send) if RANK == 0 else (send, reduce):
        call()
except Exception as error:
    for part in ("MismatchError", "rank 0", "rank 1", "all_reduce(", "broadcast("):
        assert part in repr(error), f"no {part} in {error!r}"
else:
    raise AssertionError("there was no error")
# The next calls match again.
result = jax.jit(lambda x: sj.all_reduce(x, sj.Sum, name="agrees"))(np.ones(3))
assert result.tolist() == [2.0, 2.0, 2.0], result
sj.shutdown()
