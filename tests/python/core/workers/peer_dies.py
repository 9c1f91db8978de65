"""The last rank is killed in the middle of a round; the others' errors must name rank and host."""

from __future__ import annotations

import os
import signal
import socket
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, join_torch, raises, same

LAST = WORLD_SIZE - 1


def by_name() -> None:
    hvd.init()
    for _ in range(3):
        expected = torch.full((100_000,), float(WORLD_SIZE))
        same(hvd.allreduce(torch.ones(100_000), op=hvd.Sum, name="gradient"), expected)
    if RANK == LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    with raises(hvd.PeerLostError, f"rank {LAST}", socket.gethostname(), "allreduce.gradient"):
        hvd.allreduce(torch.ones(100_000), op=hvd.Sum, name="gradient")
    with raises(hvd.PeerLostError, f"rank {LAST}"):
        hvd.allreduce(torch.ones(3), name="later")


def by_ddp() -> None:
    join_torch()
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    for _ in range(3):
        model(torch.ones(2, 300)).sum().backward()
    if RANK == LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    # DDP's reducer is C++: it keeps the message and not the exception's class.
    with raises(RuntimeError, f"rank {LAST}", "all_reduce"):
        model(torch.ones(2, 300)).sum().backward()
    with raises(hvd.PeerLostError, f"rank {LAST}"):
        dist.all_reduce(torch.ones(3))


by_ddp() if sys.argv[1] == "ddp" else by_name()
