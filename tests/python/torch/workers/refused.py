"""Calls of torch's front that one rank cannot make: an error on all ranks, and the job goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises
from refusing import ODD, Call, each_refused, each_refused_unnamed, refused
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
    "sparse": (
        lambda name: hvd.sparse_allreduce_async(ONES, name, hvd.Sum)(),
        lambda name: hvd.sparse_allreduce_async(SPARSE, name, hvd.Sum)(),
        "not sparse (COO)",
    ),
    "sparse's device": (
        lambda name: hvd.sparse_allreduce_async(SPARSE.to("meta"), name, hvd.Sum)(),
        lambda name: hvd.sparse_allreduce_async(SPARSE, name, hvd.Sum)(),
        "device meta",
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


class OfOneRank:
    """Can be unpickled where it was pickled, and on no other rank."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return unpickle, (RANK,)


def unpickle(rank: int) -> OfOneRank:
    if rank != RANK:
        raise TypeError("it cannot be unpickled here")
    return OfOneRank()


def send(root: int = 0, prefix: str = "Parameter.", **tensors: object) -> None:
    hvd.broadcast_parameters(tensors, root, prefix)


def send_state(kind: type[torch.optim.Optimizer] = torch.optim.SGD, **options: object) -> None:
    hvd.broadcast_optimizer_state(kind([torch.nn.Parameter(ONES)], lr=0.1, **options))


def send_what_one_rank_cannot_read() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(ONES)], lr=0.1)
    optimizer.param_groups[0]["extra"] = OfOneRank()
    hvd.broadcast_optimizer_state(optimizer)


# Of parameters and optimizers. The coordinator finds these as well.
STATES: list[tuple[Callable[[], None], Callable[[], None], str]] = [
    (lambda: send(w=[1.0]), lambda: send(w=ONES), "w is a list"),
    (lambda: send(w=SPARSE), lambda: send(w=ONES), "sparse"),
    (lambda: send(WORLD_SIZE, w=ONES), lambda: send(w=ONES), f"root_rank is {WORLD_SIZE}"),
    (lambda: hvd.broadcast_parameters(1), lambda: send(w=ONES), "not iterable"),
    (lambda: send_state(torch.optim.LBFGS), send_state, "LBFGS"),
    (lambda: hvd.broadcast_optimizer_state(None), send_state, "state_dict"),
]


def check_states() -> None:
    for bad, good, reason in STATES:
        refused(bad, good, reason, hvd.barrier)
        check_states_later()
    if WORLD_SIZE == 2:
        # The first rank's, which the others get when it has gone on.
        refused(
            send_what_one_rank_cannot_read,
            send_what_one_rank_cannot_read,
            "cannot be unpickled here",
            hvd.barrier,
        )
        check_states_later()
    for bad, good in ((ONES[1:], ONES), (ONES, ONES[1:])):
        # All find this, tensor by tensor; the next call has one of the two shapes.
        with raises(hvd.MismatchError, "shape [5]", "shape [6]"):
            send(w=bad if RANK == ODD else good)
        check_states_later()


def check_states_later() -> None:
    received = torch.full((6,), float(RANK))
    send(ODD, w=received)
    assert received.tolist() == [float(ODD)] * 6
    optimizer = torch.optim.SGD([torch.nn.Parameter(ONES)], lr=float(RANK))
    hvd.broadcast_optimizer_state(optimizer, ODD)
    assert optimizer.param_groups[0]["lr"] == ODD
    check_later(None)


hvd.init()
if sys.argv[1] == "named":
    each_refused(CASES, CASES, hvd.barrier, check_later)
elif sys.argv[1] == "states":
    check_states()
else:
    each_refused_unnamed(("bool", "gather", "object", "adasum"), CASES, hvd.barrier, check_later)
hvd.shutdown()
