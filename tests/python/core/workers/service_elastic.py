"""In an elastic job, where two ranks mirror each element of a variable, its state is whole."""

from __future__ import annotations

import numpy as np

from common import RANK
from sumpter import service

hub = service.connect()
variable = hub.init_variable("w", np.linspace(-1, 1, 3000, dtype=np.float32), "adam", lr=0.1)
for step in range(3):
    hub.push(variable, np.full(3000, step + RANK, np.float32)).synchronize()
state = hub.state("w")
assert state["step"] == 3
assert np.array_equal(state["value"], hub.pull("w"))
assert (state["exp_avg_sq"] > 0).all() and (state["exp_avg_sq"] < 10).all()
hub.close()
