"""The table of what Sumpter carries and what goes to Gloo, against what the backend does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from sumpter._core.session import Session
from sumpter.torch.c10d import collective
from sumpter.torch.c10d.backend import SumpterBackend
from sumpter.torch.c10d.coverage import GLOO, SUMPTER, TABLE, Row
from sumpter.torch.c10d.delegate import DelegatedWork, GlooDelegate


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (3,), dtype=torch.int32)


def options(kind: type, **values: object) -> Any:
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


# How torch calls each method in a group of one rank. `op` is for those that reduce.
CALLS: dict[str, Callable[[SumpterBackend, Any], object]] = {
    "allreduce": lambda b, op: b.allreduce([ones()], options(c10d.AllreduceOptions, reduceOp=op)),
    "allreduce_coalesced": lambda b, op: b.allreduce_coalesced(
        [ones()], options(c10d.AllreduceCoalescedOptions, reduceOp=op)
    ),
    "allreduce_sparse": lambda b, _: b.allreduce_sparse(
        [ones().to_sparse()], c10d.AllreduceOptions()
    ),
    "reduce": lambda b, op: b.reduce([ones()], options(c10d.ReduceOptions, reduceOp=op)),
    "reduce_scatter": lambda b, op: b.reduce_scatter(
        [ones()], [[ones()]], options(c10d.ReduceScatterOptions, reduceOp=op)
    ),
    "reduce_scatter_single": lambda b, op: b.reduce_scatter_single(
        ones(), ones(), options(c10d.ReduceScatterOptions, reduceOp=op)
    ),
    "reduce_scatter_single_coalesced": lambda b, op: b.reduce_scatter_single_coalesced(
        [ones()], [ones()], options(c10d.ReduceScatterOptions, reduceOp=op)
    ),
    "broadcast": lambda b, _: b.broadcast([ones()], c10d.BroadcastOptions()),
    "allgather": lambda b, _: b.allgather([[ones()]], [ones()], c10d.AllgatherOptions()),
    "allgather_coalesced": lambda b, _: b.allgather_coalesced(
        [[ones()]], [ones()], c10d.AllgatherOptions()
    ),
    "all_gather_single": lambda b, _: b.all_gather_single(ones(), ones(), c10d.AllgatherOptions()),
    "all_gather_single_coalesced": lambda b, _: b.all_gather_single_coalesced(
        [ones()], [ones()], c10d.AllgatherOptions()
    ),
    "barrier": lambda b, _: b.barrier(c10d.BarrierOptions()),
    "gather": lambda b, _: b.gather([[ones()]], [ones()], c10d.GatherOptions()),
    "scatter": lambda b, _: b.scatter([ones()], [[ones()]], c10d.ScatterOptions()),
    "alltoall": lambda b, _: b.alltoall([ones()], [ones()], c10d.AllToAllOptions()),
    "all_to_all_single": lambda b, _: b.all_to_all_single(
        ones(), ones(), [], [], c10d.AllToAllOptions()
    ),
    "send": lambda b, _: b.send([ones()], 0, 0),
    "recv": lambda b, _: b.recv([ones()], 0, 0),
    "recv_anysource": lambda b, _: b.recv_anysource([ones()], 0),
    "monitored_barrier": lambda b, _: b.monitored_barrier(c10d.BarrierOptions(), False),
}


class Recorder:
    """Stands in for the Gloo group; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.asked.append(name)


@dataclass
class Group:
    backend: SumpterBackend
    gloo: Recorder

    def who_carries(self, row: Row, op: dist.ReduceOp.RedOpType) -> str:
        self.gloo.asked.clear()
        work = CALLS[row.method](self.backend, op)
        if isinstance(work, DelegatedWork):
            # Gloo is asked when the ranks agree about the call.
            work._started.result()
        if self.gloo.asked:
            return GLOO
        if row.method == "monitored_barrier":
            return SUMPTER  # it has blocked, and has no Work
        assert isinstance(work, dist.Work), f"{row.method} has no implementation"
        work.wait()
        return SUMPTER


@pytest.fixture
def group(unlaunched: pytest.MonkeyPatch) -> Iterator[Group]:
    gloo = Recorder()
    unlaunched.setattr(GlooDelegate, "group", property(lambda self: gloo))
    dist.init_process_group("sumpter", store=dist.HashStore(), rank=0, world_size=1)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert isinstance(backend, SumpterBackend)
    yield Group(backend, gloo)
    dist.destroy_process_group()


def test_every_collective_of_the_backend_has_a_row() -> None:
    def is_collective(name: str) -> bool:
        # Collectives return a Work; this one blocks instead.
        says = getattr(getattr(c10d.Backend, name, None), "__doc__", None) or ""
        return "Work" in says or name == "monitored_barrier"

    own = [kind for kind in SumpterBackend.__mro__ if kind.__module__.startswith("sumpter.")]
    collectives = {name for kind in own for name in vars(kind) if is_collective(name)}
    assert len(collectives) > 15
    methods = [row.method for row in TABLE]
    assert sorted(methods) == sorted(collectives)


def test_rows_say_who_and_why() -> None:
    for row in TABLE:
        assert row.carrier in (SUMPTER, GLOO)
        assert bool(row.why) == (row.carrier == GLOO), row.method


def test_each_collective_goes_where_its_row_says(group: Group) -> None:
    usual = dist.ReduceOp.SUM
    assert {row.method: group.who_carries(row, usual) for row in TABLE} == {
        row.method: row.carrier for row in TABLE
    }


def test_reductions_without_a_kernel_go_to_gloo(group: Group) -> None:
    odd = dist.ReduceOp.BOR
    for row in TABLE:
        expected = GLOO if row.otherwise else row.carrier
        assert group.who_carries(row, odd) == expected, row.method


def test_what_a_collective_is_made_of_is_kept_for_the_next_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collective, "KEPT_ROUNDS", 2)
    session = object.__new__(Session)
    session.restored = {}
    native = SimpleNamespace(is_empty=False, submit=None)
    session.worker = cast(Any, SimpleNamespace(declare=lambda *_, **__: native))
    session.rank, session.world_size, session.device_link = 1, 4, None
    session._declared, session._cycles = {}, {}
    two = collective.Group(session, "pair", 0, (1, 3), 1.0)
    tensor = torch.ones(3, dtype=torch.int32)

    def reduction(name: str) -> Any:
        op = dist.ReduceOp(getattr(dist.ReduceOp.RedOpType, name))
        return two.reduction("all_reduce", tensor.clone(), collective.op_number(op), None)

    first = reduction("SUM")
    assert reduction("SUM") is first
    assert reduction("BOR") is None
    assert (first.divides, reduction("AVG").divides) == (False, True)
    copied = two.broadcast("broadcast", tensor.to(torch.complex64), 1)
    described = next(copied.tensors.turns).description
    assert (described.dtype, described.shape, described.root) == ("uint8", (24,), 3)
    # The third kind did not fit; all are made anew, and look the same.
    again = reduction("SUM")
    assert again is not first
    assert (again.label, again.tensors) == (first.label, first.tensors)
    assert again.label == "all_reduce(int32 [3], sum)"
