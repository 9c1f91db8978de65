"""Ranks that disagree about a tensor or a call: an error everywhere, and the job goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

import sumpter
import sumpter.torch as hvd
from common import RANK, join_torch, raises, same
from sumpter.torch import MismatchError

ODD = RANK == 1


def named() -> None:
    """The name is the same; something else is not. Both ranks and both views are named."""
    cases: dict[str, tuple[Callable[[], object], str, str]] = {
        "shape": (lambda: hvd.allreduce(torch.ones(3 if ODD else 2), name="shape"), "[2]", "[3]"),
        "dtype": (
            lambda: hvd.allreduce(torch.ones(2, dtype=torch.int32 if ODD else None), name="dtype"),
            "int32",
            "float32",
        ),
        "op": (
            lambda: hvd.allreduce(torch.ones(2), name="op", op=hvd.Max if ODD else hvd.Sum),
            "max",
            "sum",
        ),
        "root": (lambda: hvd.broadcast(torch.ones(2), int(ODD), name="root"), "root", "root"),
        "array": (lambda: sumpter.push_pull(np.ones((2, 2 + ODD)), name="array"), "2, 2", "2, 3"),
    }
    for name, (call, one, other) in cases.items():
        with raises(MismatchError, name, "rank 0", "rank 1", one, other):
            call()


def unnamed() -> None:
    """Calls are matched by their order, so another description is another call."""
    with raises(MismatchError, "rank 0", "rank 1", "allreduce(float32 [2], average)", "[4]"):
        hvd.allreduce(torch.ones(4 if ODD else 2))


def collectives() -> None:
    with raises(MismatchError, "rank 0", "rank 1", "float32 [2]", "float32 [5]"):
        dist.all_reduce(torch.ones(5 if ODD else 2))
    with raises(MismatchError, "rank 0", "rank 1", "float32", "float64"):
        dist.all_reduce(torch.ones(2, dtype=torch.float64 if ODD else torch.float32))
    with raises(MismatchError, "rank 0", "rank 1", "sum", "max"):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if ODD else dist.ReduceOp.SUM)
    with raises(MismatchError, "rank 0", "rank 1", "root 0", "root 1"):
        dist.broadcast(torch.ones(2), src=int(ODD))
    with raises(MismatchError, "rank 0", "rank 1", "all_reduce", "barrier"):
        if ODD:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(2))


def model_sizes() -> None:
    """DistributedOptimizer on models of different sizes."""
    model = torch.nn.Linear(3, 3 if ODD else 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    model(torch.ones(1, 3)).sum().backward()
    with raises(MismatchError, "Gradient.", "rank 0", "rank 1"):
        optimizer.step()


join_torch()
hvd.init()
for check in (named, unnamed, collectives, model_sizes):
    check()
    same(hvd.allreduce(torch.ones(2), name="after", op=hvd.Sum), torch.full((2,), 2.0))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), 2.0))
dist.destroy_process_group()
hvd.shutdown()
