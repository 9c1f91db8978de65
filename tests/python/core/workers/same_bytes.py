"""Averages of arrays through a front; in a deterministic job, with the bytes of every other's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

RANK, FRONT = int(os.environ["RANK"]), os.environ["TEST_FRONT"]
own = np.random.default_rng(RANK).normal(size=20_000).astype(np.float32)
if FRONT == "tensorflow":
    import tensorflow as tf

    import sumpter.tensorflow as front

    front.init()
    result = front.allreduce(tf.constant(own), name="x").numpy()
elif FRONT == "jax":
    import jax

    import sumpter.jax as front

    front.init()
    result = np.asarray(jax.jit(lambda x: front.all_reduce(x, name="x"))(own))
elif FRONT == "torch":
    import torch

    import sumpter.torch as front

    front.init()
    result = front.allreduce(torch.from_numpy(own), name="x").numpy()
else:
    import sumpter as front

    front.init()
    result = front.push_pull(own, name="x")
(Path(os.environ["TEST_FOLDER"]) / f"result.{RANK}").write_bytes(result.tobytes())
front.shutdown()
