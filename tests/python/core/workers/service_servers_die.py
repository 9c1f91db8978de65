"""Pushes to variables of servers, which are killed on the way if their pids are given."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from common import RANK, leave_result
from sumpter import service

STEPS = 12
ELEMENTS = 200_000  # several partitions on each server

pids = [int(pid) for pid in sys.argv[1:]]
with service.connect() as hub:
    hub.init_variable("weights", np.ones(ELEMENTS, np.float32), "adam", lr=0.01)
    hub.init_variable("total", np.zeros(ELEMENTS, np.float32))
    for step in range(STEPS):
        generator = np.random.default_rng(100 * step + RANK)
        gradient = generator.normal(size=ELEMENTS).astype(np.float32)
        hub.push("weights", gradient)
        hub.push("total", np.round(gradient))
        if RANK == 0 and step in (3, 7) and pids:
            os.kill(pids.pop(), signal.SIGKILL)
        if step % 2:
            # So that several rounds are in flight when a server dies.
            hub.pull("weights")
    parts = [hub.pull("total"), *hub.state("weights").values()]
    leave_result(b"".join(np.asarray(part).tobytes() for part in parts))
