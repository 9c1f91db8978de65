"""Horovod's behaviours one after the other in one process, with errors in between.

After each, the session must be as good as new: no error may reach what comes after it.
"""

from __future__ import annotations

import suite_exchanges
import suite_reductions
import suite_training
from common_suite import goes_on

import sumpter.torch as hvd

PARTS = [suite_reductions, suite_exchanges, suite_training]

hvd.init()
for turn in range(2):
    for part in PARTS:
        # The second time in another order: what came before must not matter.
        for check in part.CHECKS if turn == 0 else reversed(part.CHECKS):
            print("->", part.__name__, check.__name__, flush=True)
            check()
            goes_on()
hvd.shutdown()
