"""A program that JAX has kept on disk calls as it did in the process that compiled it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import sumpter.jax as sj

hits: list[str] = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None
)
# A rank that is slow must not find what another one has compiled.
jax.config.update("jax_compilation_cache_dir", f"{sys.argv[1]}/{os.environ['RANK']}")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

sj.init()
pair = sj.add_process_set([0, 1])


@jax.jit
def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    total = sj.all_reduce({"w": x}, sj.Sum, name="all")["w"]
    if sj.rank() < 2:
        total = total + sj.all_reduce(x, sj.Sum, process_set=pair)
    sj.barrier()
    return total, sj.all_gather(x, name="rows")


total, rows = jax.block_until_ready(step(jnp.ones(5) * (1 + sj.rank())))
np.testing.assert_array_equal(total, np.full(5, 6 + (3 if sj.rank() < 2 else 0)))
np.testing.assert_array_equal(rows, np.repeat([1, 2, 3], 5))
(Path(os.environ["TEST_FOLDER"]) / f"result.{sj.rank()}").write_bytes(json.dumps(hits).encode())
sj.shutdown()
