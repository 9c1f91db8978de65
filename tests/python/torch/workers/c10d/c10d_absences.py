"""Calls that the other rank never joins, or joins in another order: an error within the timeout.

What Gloo carries out and what Sumpter carries are in turn on the wrong side.
"""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
from c10d_common import equal, join

from common import RANK, raises
from sumpter.torch import DeadlineError

# Long enough for two ranks that begin together on a busy machine.
SHORT = datetime.timedelta(seconds=5)
ACCUSED = "Rank 1 failed to pass monitoredBarrier in 5000 ms"

join()
# A broadcast that only rank 0 calls while rank 1 waits for a message: one waits for the core, the
# other for Gloo, and each says in what.
first, second = dist.new_group(timeout=SHORT), dist.new_group(timeout=SHORT)
if RANK == 0:
    with raises(DeadlineError, "broadcast(float32 [3], root 0)", "5 s"):
        dist.broadcast(torch.ones(3), src=0, group=first)
else:
    with raises(DeadlineError, "recv(float32 [3], from rank 0)"):
        dist.recv(torch.ones(3), src=0, group=first)
dist.barrier()

# Two groups in another order on each rank.
third, fourth = dist.new_group(timeout=SHORT), dist.new_group(timeout=SHORT)
with raises(DeadlineError, "all_reduce(float32 [2], sum) of group", "5 s"):
    dist.all_reduce(torch.ones(2), group=third if RANK == 0 else fourth)
dist.barrier()

# A delegated collective that one rank does not call.
if RANK == 0:
    with raises(DeadlineError, "gather(float32 [2], root 0)"):
        dist.gather(torch.ones(2), [torch.ones(2), torch.ones(2)], dst=0, group=second)
dist.barrier()

# A monitored barrier names the missing rank, which gets the error when it comes late.
watched = dist.new_group()
if RANK == 0:
    with raises(DeadlineError, ACCUSED):
        dist.monitored_barrier(watched, timeout=SHORT, wait_all_ranks=True)
dist.barrier()
if RANK == 1:
    with raises(DeadlineError, ACCUSED):
        dist.monitored_barrier(watched, timeout=SHORT)
dist.monitored_barrier(watched)

own = torch.ones(2)
dist.all_reduce(own)
equal(own, torch.full((2,), 2.0))
dist.destroy_process_group()
