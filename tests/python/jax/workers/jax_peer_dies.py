"""The last rank is killed inside jit: the others' errors name it, the tensor and its host."""

from __future__ import annotations

import os
import signal
import socket
import time

import jax
import jax.numpy as jnp
import numpy as np

import sumpter.jax as sj

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAST = SIZE - 1
ENDS_S = 30  # far longer than it takes


def die(number: np.ndarray) -> np.ndarray:
    if RANK == LAST and number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@jax.jit
def train(x: jax.Array) -> jax.Array:
    def body(x: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        number = jax.experimental.io_callback(die, number, number, ordered=True)
        return sj.all_reduce({"weights": x + number}, name="gradients")["weights"], None

    return jax.lax.scan(body, x, jnp.arange(100))[0]


sj.init()
began_s = time.monotonic()
try:
    train(jnp.ones(100_000)).block_until_ready()
except Exception as error:
    text = str(error)
    for part in ("PeerLostError", f"rank {LAST}", socket.gethostname(), "gradients/weights"):
        assert part in text, f"no {part} in {text}"
else:
    raise AssertionError("there was no error")
try:
    sj.all_reduce(np.ones(3))
except sj.PeerLostError as error:
    assert f"rank {LAST}" in str(error), error
else:
    raise AssertionError("there was no error")
assert time.monotonic() - began_s < ENDS_S
