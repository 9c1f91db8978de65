"""Ranks whose calls differ: an error on every rank that names who differs, and the group goes on.

The last rank is the odd one. Calls that Sumpter carries and calls that Gloo does are mixed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from c10d_common import LAST, equal, join

from common import ALL, RANK, WORLD_SIZE, raises
from sumpter.torch import MismatchError

ODD = RANK == LAST
Case = tuple[Callable[[], object], str, str]


def ones(count: int = 2, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def gather(tensor: torch.Tensor, root: int = 0) -> None:
    copies = [torch.empty_like(tensor) for _ in ALL] if root == RANK else None
    dist.gather(tensor, copies, dst=root)


def scatter(root: int = 0) -> None:
    dist.scatter(ones(), [ones() for _ in ALL] if root == RANK else None, src=root)


def carried() -> list[Case]:
    """What differs, and what both sides' descriptions contain."""
    reduce_op = dist.ReduceOp
    return [
        (lambda: dist.all_reduce(ones(3 if ODD else 2)), "[2]", "[3]"),
        (lambda: dist.all_reduce(ones(), reduce_op.AVG if ODD else reduce_op.SUM), "sum", "avg"),
        (lambda: dist.reduce(ones(), dst=int(ODD)), "root 0", "root 1"),
        (
            lambda: dist.broadcast(ones(), 0) if ODD else dist.all_reduce(ones()),
            "all_reduce",
            "broadcast",
        ),
    ]


def delegated() -> list[Case]:
    return [
        (lambda: gather(ones(3 if ODD else 2)), "gather(float32 [2]", "gather(float32 [3]"),
        (lambda: scatter() if ODD else gather(ones()), "gather", "scatter"),
        (lambda: scatter(root=int(ODD)), "root 0", "root 1"),
    ]


def mixed() -> list[Case]:
    whole = torch.int32
    return [
        (lambda: gather(ones()) if ODD else dist.all_reduce(ones()), "all_reduce", "gather"),
        (
            lambda: dist.all_reduce(
                ones(dtype=whole), dist.ReduceOp.BXOR if ODD else dist.ReduceOp.SUM
            ),
            "sum",
            "bxor",
        ),
    ]


def check(cases: list[Case]) -> None:
    for call, one, other in cases:
        with raises(MismatchError, f"rank {LAST} called", one, other):
            call()
        own = torch.ones(3)
        dist.all_reduce(own)
        equal(own, torch.full((3,), float(WORLD_SIZE)))
        own = torch.full((2,), 1 << RANK)
        dist.all_reduce(own, op=dist.ReduceOp.BOR)
        equal(own, torch.full((2,), (1 << WORLD_SIZE) - 1))


def futures() -> None:
    """The future of a call that differs fails, too, carried or delegated."""
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.BAND):
        work = dist.all_reduce(ones(3 if ODD else 2, torch.int32), op=op, async_op=True)
        with raises(RuntimeError, f"rank {LAST} called"):
            work.get_future().wait()
        assert work.is_completed()
        assert isinstance(work.exception(), MismatchError)
        assert not work.is_success()


def other_groups() -> None:
    """In groups of their own, ranks are named as the job names them."""
    pair = dist.new_group(sorted({0, LAST}))
    if RANK in (0, LAST):
        with raises(MismatchError, "rank 0", f"rank {LAST}", "[2]", "[3]"):
            dist.all_reduce(ones(3 if ODD else 2), group=pair)
    dist.barrier()


join()
check(carried())
check(delegated())
check(mixed())
futures()
other_groups()
dist.destroy_process_group()
