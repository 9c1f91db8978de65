"""Joining by every rendezvous of torch, again and again, under each spelling of the backend."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from c10d_common import LAST, equal, join

from common import ALL, FOLDER, RANK, WORLD_SIZE

# Each time the ranks have a coordinator of their own, as they have under torchrun.
del os.environ["SUMPTER_COORDINATOR"]
PORTS = sys.argv[2].split(",")


def check() -> None:
    assert dist.get_backend().endswith("sumpter")
    everyone, pair = dist.group.WORLD, sorted({0, LAST})
    group = dist.new_group(pair)
    for members, ranks in ((everyone, list(ALL)), (group, pair)):
        if RANK in ranks:
            own = torch.full((5,), RANK + 1.0)
            dist.all_reduce(own, group=members)
            equal(own, torch.full((5,), sum(rank + 1.0 for rank in ranks)))
            own = torch.full((2,), 1 << RANK)
            dist.all_reduce(own, op=dist.ReduceOp.BOR, group=members)
            equal(own, torch.full((2,), sum(1 << rank for rank in ranks)))
    dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized()


for _ in range(2):
    join("sumpter")
    check()
join("cpu:sumpter")
check()
join("sumpter", init_method=f"tcp://127.0.0.1:{PORTS[0]}")
check()
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", PORTS[1]
dist.init_process_group("sumpter")
check()
store = dist.FileStore(f"{FOLDER}/handed", WORLD_SIZE)
dist.init_process_group(backend="sumpter", store=store, rank=RANK, world_size=WORLD_SIZE)
check()
