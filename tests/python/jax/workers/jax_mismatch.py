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
    for part in ("MismatchError", "rank 0", "rank 1", "allreduce(", "broadcast("):
        assert part in repr(error), f"no {part} in {error!r}"
else:
    raise AssertionError("there was no error")


@jax.jit
def long_before(x: jax.Array) -> jax.Array:
    """So long that JAX does not wait for it in the call."""
    product = jax.numpy.full((800, 800), x.sum())
    for _ in range(30):
        product = jax.numpy.tanh(product @ product)
    return sj.all_reduce(x + 0 * product.sum(), sj.Sum, name=f"long{x.shape[0] % 2}")


try:
    long_before(np.ones(5 + 2 * RANK, np.float32)).block_until_ready()
except Exception as error:
    assert "MismatchError" in str(error), error
else:
    raise AssertionError("there was no error")
# Programs get the error of the one before until something is called outside of them.
sj.barrier()
np.testing.assert_array_equal(long_before(np.ones(4, np.float32)), np.full(4, 2.0))
# The next calls match again.
result = jax.jit(lambda x: sj.all_reduce(x, sj.Sum, name="agrees"))(np.ones(3))
assert result.tolist() == [2.0, 2.0, 2.0], result
sj.shutdown()
