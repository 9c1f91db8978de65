"""A variable that the servers have no memory for fails on all ranks; a smaller one does not."""

from __future__ import annotations

import numpy as np

import sumpter
from common import raises
from sumpter import service

with service.connect() as hub:
    hub.init_variable("small", np.ones(1000, np.float32), "adam")
    with raises(sumpter.MismatchError, "large", "max_job_bytes"):
        hub.init_variable("large", np.ones(1 << 22, np.float32), "adam")
        hub.push_pull("large", np.ones(1 << 22, np.float32))
    assert hub.push_pull("small", np.ones(1000, np.float32)).shape == (1000,)
