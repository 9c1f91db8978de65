"""Sums of arrays through TensorFlow's front; in a deterministic job, with the bytes of torch's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

RANK = int(os.environ["RANK"])
own = np.random.default_rng(RANK).normal(size=20_000).astype(np.float32)
if os.environ["TEST_FRONT"] == "tensorflow":
    import tensorflow as tf

    import sumpter.tensorflow as front

    front.init()
    result = front.allreduce(tf.constant(own), name="x").numpy()
else:
    import torch

    import sumpter.torch as front

    front.init()
    result = front.allreduce(torch.from_numpy(own), name="x").numpy()
(Path(os.environ["TEST_FOLDER"]) / f"result.{RANK}").write_bytes(result.tobytes())
front.shutdown()
