"""A program computes on while the rounds of what it has computed already are under way."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

import sumpter.jax as sj
from sumpter.jax import programs

LAYERS = 4
PATIENCE_S = 60.0
seen: list[int] = []


def wait_for_rounds(array: np.ndarray) -> np.ndarray:
    """Returns when the rounds of all layers before this one are over, or after long."""
    started, wanted = programs._programs._started, len(seen)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        begun = list(started.values())
        if len(begun) >= wanted and all(r.poll() for one in begun for r in one.rounds):
            seen.append(len(begun))
            return np.asarray(array)
        time.sleep(0.001)
    raise TimeoutError(f"{len(started)} of {wanted} layers are on their way")


@jax.jit
def step(x: jax.Array) -> dict[str, jax.Array]:
    gradients = {}
    for layer in reversed(range(LAYERS)):
        x = jax.pure_callback(wait_for_rounds, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        gradients[f"layer{layer}"] = x * (layer + 1)
        x = jnp.tanh(x @ x)
    return sj.all_reduce(gradients, sj.Sum, name="gradients")


def main() -> None:
    sj.init()
    x = jnp.eye(64) * (1 + sj.rank())
    for _ in range(3):
        seen.clear()
        result = jax.block_until_ready(step(x))
        assert seen == list(range(LAYERS)), seen
        total = sum(range(1, sj.size() + 1))
        np.testing.assert_array_equal(result[f"layer{LAYERS - 1}"], jnp.eye(64) * total * LAYERS)
    assert not programs._programs._started, "nothing is on its way when a program has ended"
    sj.shutdown()


main()
