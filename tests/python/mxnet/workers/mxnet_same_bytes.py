"""Sums of arrays, several rounds of one name, through MXNet's front or NumPy's; writes the last."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import sumpter

RANK = int(os.environ["RANK"])
CODEC = {
    "none": "none",
    "topk": {"compressor": "topk", "k": 0.01, "ef": "vanilla"},
    "onebit": {"compressor": "onebit", "scaling": True, "ef": "vanilla"},
    "fp16": {"fp16": True},
}[os.environ["TEST_CODEC"]]
ROUNDS = 3

sumpter.init()
random = np.random.default_rng(RANK)
for _ in range(ROUNDS):
    own = random.normal(size=(200, 100)).astype(np.float32)
    if os.environ["TEST_FRONT"] == "mxnet":
        import mxnet as mx

        import sumpter.mxnet as sm

        result = sm.push_pull(mx.nd.array(own), True, "x", compression=CODEC).asnumpy()
    else:
        result = sumpter.push_pull(own, True, "x", compression=CODEC)
(Path(os.environ["TEST_FOLDER"]) / f"result.{RANK}").write_bytes(result.tobytes())
sumpter.shutdown()
