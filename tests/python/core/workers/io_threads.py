"""All collectives on all element types, or on those named; leaves a digest of every result."""

from __future__ import annotations

import hashlib
import sys

import torch

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, leave_result

NAMES = ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
DTYPES: list[torch.dtype] = [getattr(torch, name) for name in sys.argv[1:] or NAMES]
# One element; less than a loop's part of any type; parts for two loops, of some types; for three.
SIZES = (1, 1000, 50_001, 400_003)
# Several MiB, in one type.
LARGE = 1_500_007
ROUNDS = 2

digest = hashlib.sha256()


def values(size: int, dtype: torch.dtype, round_: int) -> torch.Tensor:
    """Different on every rank; sums of the floats depend on the order of addition."""
    numbers = (torch.arange(size) * 7919 + RANK * 31 + round_) % 127
    return numbers.to(dtype) if not dtype.is_floating_point else (numbers / 3).to(dtype)


def note(result: torch.Tensor) -> None:
    digest.update(result.contiguous().view(torch.uint8).numpy().tobytes())


def check(size: int, dtype: torch.dtype, round_: int) -> None:
    what, tensor = f"{size} {dtype}", values(size, dtype, round_)
    average = hvd.Average if dtype.is_floating_point else hvd.Sum
    root = round_ % WORLD_SIZE
    handles = [
        hvd.allreduce_async(tensor, op=hvd.Sum, name=f"sum {what}"),
        hvd.allreduce_async(tensor, op=average, name=f"average {what}"),
        hvd.allreduce_async(tensor, op=hvd.Max, name=f"max {what}"),
        hvd.broadcast_async(tensor, root, name=f"told by {root} {what}"),
        hvd.allgather_async(tensor[: max(1, size - RANK)], name=f"all {what}"),
    ]
    for handle in handles:
        note(hvd.synchronize(handle))
    if size >= WORLD_SIZE:
        note(hvd.reducescatter(tensor, op=hvd.Sum, name=f"share {what}"))
        received = hvd.alltoall(tensor, name=f"to all {what}") if size % WORLD_SIZE == 0 else None
        if received is not None:
            note(received[0] if isinstance(received, tuple) else received)


hvd.init()
for round_ in range(ROUNDS):
    for dtype in DTYPES:
        for size in SIZES:
            check(size, dtype, round_)
    check(LARGE, torch.float32, round_)
hvd.shutdown()
leave_result(digest.digest())
