"""A rank leaves with its last program only begun: "calls" shutdown(), or "exits"."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp

import sumpter.jax as sj
from common import RANK, WORLD_SIZE, leave_result

sj.init()


@jax.jit
def step(value: jax.Array) -> jax.Array:
    """Computes for a while before the collective, so that the program runs when the rank leaves."""
    busy = jax.lax.fori_loop(0, 100, lambda _, x: jnp.tanh(x @ x), jnp.eye(500) + value[0])
    late = value + 0 * busy[0, :3]
    return sj.all_reduce(late, op=sj.Sum)


STEPS = 3
value = jnp.ones(3)
for _ in range(STEPS):
    value = step(value)
if RANK == 0:
    assert value.tolist() == [float(WORLD_SIZE**STEPS)] * 3
if "calls" in sys.argv:
    sj.shutdown()
if RANK == 1:
    # Also where a rank reads its results after it has left.
    assert "exits" in sys.argv or value.tolist() == [float(WORLD_SIZE**STEPS)] * 3
leave_result(b"done")
