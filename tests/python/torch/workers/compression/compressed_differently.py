"""One rank lets the codec be chosen, the other has one: an error that shows both."""

from __future__ import annotations

import numpy as np

import sumpter
from common import RANK, raises

sumpter.init()
own = np.ones(50_000, np.float32)
with raises(sumpter.MismatchError, "allreduce.x", "compressed by auto", "compressed by int8"):
    sumpter.push_pull(own, name="x", compression=("auto", "int8")[RANK])
chosen = sumpter.Compression.auto(codecs=["bf16", sumpter.Compression.topk(k=0.1)])
sumpter.push_pull(own, name="y", compression=chosen)
with raises(sumpter.ConfigError, "int8:momentum=0.9", "leaves uncompressed"):
    sumpter.push_pull(own, name="z", compression="auto:codecs=int8:momentum=0.9")
sumpter.shutdown()
