"""Calls of torch's front that one rank cannot make: an error on all ranks, and the job goes on."""

from __future__ import annotations

import sys

import torch

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE
from refusing import ODD, Call, each_refused, each_refused_unnamed
from sumpter.torch import ops as byteps

ONES = torch.ones(6)
SPARSE = torch.eye(3).to_sparse()
META = torch.ones(6, device="meta")


class Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("a lock cannot be sent")


# What one rank does, what the others do, and what is wrong with it.
CASES: dict[str, tuple[Call, Call, str]] = {
    "no tensor": (
        lambda name: hvd.allreduce([1.0], name=name),
        lambda name: hvd.allreduce(ONES, name=name),
        "expected a torch.Tensor",
    ),
    "bool": (
        lambda name: hvd.allreduce_async(ONES > 0, op=hvd.Sum, name=name),
        lambda name: hvd.allreduce_async(ONES, op=hvd.Sum, name=name).synchronize(),
        "bool tensors have no sum",
    ),
    "device": (
        lambda name: hvd.allreduce_(META, name=name),
        lambda name: hvd.allreduce_(ONES.clone(), name=name),
        "device meta",
    ),
    "codec": (
        lambda name: hvd.allreduce(ONES, name=name, compression="zip"),
        lambda name: hvd.allreduce(ONES, name=name),
        "zip",
    ),
    "push_pull": (
        lambda name: byteps.push_pull(ONES, name=name, compression="zip"),
        lambda name: byteps.push_pull(ONES, name=name),
        "zip",
    ),
    "op": (
        lambda name: hvd.allreduce(ONES, name=name, average=True, op=hvd.Sum),
        lambda name: hvd.allreduce(ONES, name=name),
        "average",
    ),
    "second of a group": (
        lambda name: hvd.grouped_allreduce([ONES, SPARSE, ONES], name=name),
        lambda name: hvd.grouped_allreduce([ONES] * 3, name=name),
        "sparse",
    ),
    "group's op": (
        lambda name: hvd.grouped_allreduce([ONES] * 2, name=name, average=True, op=hvd.Sum),
        lambda name: hvd.grouped_allreduce([ONES] * 2, name=name),
        "average",
    ),
    "root": (
        lambda name: hvd.broadcast(ONES, WORLD_SIZE, name=name),
        lambda name: hvd.broadcast(ONES, ODD, name=name),
        f"root_rank is {WORLD_SIZE}",
    ),
    "gather": (
        lambda name: hvd.allgather(SPARSE, name=name),
        lambda name: hvd.allgather(ONES, name=name),
        "sparse",
    ),
    "gathers": (
        lambda name: hvd.grouped_allgather([SPARSE, ONES], name=name),
        lambda name: hvd.grouped_allgather([ONES, ONES], name=name),
        "sparse",
    ),
    "splits": (
        lambda name: hvd.alltoall(ONES, [7] * WORLD_SIZE, name=name),
        lambda name: hvd.alltoall(torch.ones(WORLD_SIZE), [1] * WORLD_SIZE, name=name),
        "splits",
    ),
    "shares": (
        lambda name: hvd.reducescatter(torch.tensor(1.0), name=name),
        lambda name: hvd.reducescatter(ONES, name=name),
        "at least one dimension",
    ),
    "shares' codec": (
        lambda name: hvd.reducescatter(ONES, name=name, compression="int8"),
        lambda name: hvd.reducescatter(ONES, name=name),
        "int8",
    ),
    "object": (
        lambda name: hvd.broadcast_object(Unpicklable(), ODD, name=name),
        lambda name: hvd.broadcast_object(None, ODD, name=name),
        "a lock cannot be sent",
    ),
    "object's root": (
        lambda name: hvd.broadcast_object(1, WORLD_SIZE, name=name),
        lambda name: hvd.broadcast_object(1, ODD, name=name),
        f"root_rank is {WORLD_SIZE}",
    ),
    "objects": (
        lambda name: hvd.allgather_object(Unpicklable(), name=name),
        lambda name: hvd.allgather_object(1, name=name),
        "a lock cannot be sent",
    ),
    "adasum": (
        lambda name: hvd.allreduce(ONES.int(), op=hvd.Adasum, name=name),
        lambda name: hvd.allreduce(ONES, op=hvd.Adasum, name=name),
        "int32",
    ),
    "adasums": (
        lambda name: hvd.grouped_allreduce([ONES, ONES.int()], op=hvd.Adasum, name=name),
        lambda name: hvd.grouped_allreduce([ONES, ONES.double()], op=hvd.Adasum, name=name),
        "int32",
    ),
    "adasums' codec": (
        lambda name: hvd.grouped_allreduce([ONES], op=hvd.Adasum, name=name, compression="int8"),
        lambda name: hvd.grouped_allreduce([ONES], op=hvd.Adasum, name=name),
        "int8",
    ),
}


def check_later(name: str | None) -> None:
    """The next calls match, under the same name and others."""
    for again in (name, "another", None):
        total = hvd.allreduce(ONES * RANK, op=hvd.Sum, name=again)
        torch.testing.assert_close(total, torch.full((6,), float(sum(ALL))), rtol=0, atol=0)
        assert hvd.broadcast(torch.tensor([RANK]), ODD, name=again).item() == ODD
        assert hvd.allgather(torch.tensor([RANK]), name=again).tolist() == list(ALL)
        assert hvd.broadcast_object([RANK], ODD, name=again) == [ODD]
        both = hvd.grouped_allreduce([ONES, ONES.double()], op=hvd.Adasum, name=again)
        assert [tensor.tolist() for tensor in both] == [ONES.tolist()] * 2


hvd.init()
if sys.argv[1] == "named":
    each_refused(CASES, CASES, hvd.barrier, check_later)
else:
    each_refused_unnamed(("bool", "gather", "object", "adasum"), CASES, hvd.barrier, check_later)
hvd.shutdown()
