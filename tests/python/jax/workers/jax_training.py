"""Trains a small network; leaves the parameters. Kills servers that arguments name."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

os.environ["JAX_ENABLE_X64"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sumpter.jax as sj

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
KILLED = [int(pid) for pid in sys.argv[1:]]
STEPS, BATCH = 30, 16

Params = list[dict[str, jax.Array]]


def make_params() -> Params:
    """Other ones on each rank, of which rank 0's are taken."""
    random = np.random.default_rng(RANK)
    sizes = [(8, 100), (100, 100), (100, 4)]
    return [{"w": random.normal(size=s) / s[0] ** 0.5, "b": np.zeros(s[1])} for s in sizes]


def loss_of(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return ((x @ params[-1]["w"] + params[-1]["b"] - y) ** 2).mean()


def main() -> None:
    sj.init()
    params = sj.broadcast_parameters(make_params())
    optimizer = sj.distribute(optax.adam(1e-2))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Params, state: object, x: jax.Array, y: jax.Array) -> tuple[Params, object]:
        gradients = jax.grad(loss_of)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    data = np.random.default_rng(99)
    for number in range(STEPS):
        x, y = data.normal(size=(BATCH, 8)), data.normal(size=(BATCH, 4))
        own = slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)
        if RANK == 0 and KILLED and number % 10 == 5:
            os.kill(KILLED.pop(), signal.SIGKILL)
        params, state = step(params, state, x[own], y[own])
    assert RANK != 0 or not KILLED, "no server was killed"
    whole = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params)])
    (Path(os.environ["TEST_FOLDER"]) / f"result.{RANK}").write_bytes(whole.tobytes())
    sj.shutdown()


main()
