"""Sums until a file appears, which all ranks see in the same round."""

import sys
from pathlib import Path

import numpy as np

import sumpter

sumpter.init()
while True:
    sumpter.push_pull(np.ones(200_000, np.float32), name="gradient", average=False)
    flag = np.full(1, float(Path(sys.argv[1]).exists()), np.float32)
    if sumpter.push_pull(flag, name="flag", average=False)[0] > 0:
        break
sumpter.shutdown()
