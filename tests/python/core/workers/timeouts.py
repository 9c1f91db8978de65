"""A process group's timeout ends every way to wait for a rank that does not come."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as hvd
from common import RANK, join_torch, raises
from sumpter.torch import DeadlineError

hvd.init()
join_torch()
model = DistributedDataParallel(torch.nn.Linear(3, 3))
model(torch.ones(1, 3)).sum().backward()
dist.distributed_c10d._get_default_group().set_timeout(datetime.timedelta(seconds=0.2))
if RANK == 0:
    with raises(DeadlineError, "all_reduce(float32 [7], sum)", "0.2 s"):
        dist.all_reduce(torch.ones(7))
    work = dist.all_reduce(torch.ones(8), async_op=True)
    with raises(DeadlineError, "0.1 s"):
        work.wait(datetime.timedelta(seconds=0.1))
    with raises(RuntimeError, "0.2 s"):
        work.get_future().wait()
    with raises(RuntimeError, "0.2 s"):
        model(torch.ones(1, 3)).sum().backward()
# Rank 1 has waited here, without contributing, for rank 0 to be done.
assert hvd.broadcast_object("done") == "done"
