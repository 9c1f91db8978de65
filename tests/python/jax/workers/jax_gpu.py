"""Arrays of a GPU come back to it, eagerly and compiled; all ranks share the first one."""

from __future__ import annotations

import os

# A rank would take all of its memory.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import jax
import jax.numpy as jnp
import numpy as np

import sumpter.jax as sj

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

sj.init()
gpu = jax.devices("gpu")[0]
own = jax.device_put(jnp.arange(12.0).reshape(4, 3) + RANK, gpu)
everyone = [np.arange(12.0).reshape(4, 3) + rank for rank in range(SIZE)]
calls = {
    "sum": (lambda x: sj.all_reduce(x, sj.Sum), sum(everyone)),
    "root": (lambda x: sj.broadcast(x, 1), everyone[1]),
    "rows": (sj.all_gather, np.concatenate(everyone)),
    "gradient": (jax.grad(lambda x: (sj.all_reduce(x, sj.Sum) ** 2).sum()), None),
}
for name, (call, expected) in calls.items():
    for wrapped in (call, jax.jit(call)):
        found = wrapped(own)
        assert found.devices() == {gpu}, (name, found.devices())
        wanted = 2 * SIZE * sum(everyone) if expected is None else expected
        np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=name)
sj.shutdown()
