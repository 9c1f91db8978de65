"""What the parts of the suite share: tensors of every kind and what ranks make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int32, torch.int64)
MOVED = (*FLOATS, *WHOLE, torch.int16, torch.bool)
SHAPES = ((17,), (17, 5), (3, 17, 2), (1,), ())
LAST = WORLD_SIZE - 1
ODD = RANK == LAST
Check = Callable[[], None]


def of_rank(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers: sums and products of four ranks are exact in every type."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def each_kind(dtypes: tuple[torch.dtype, ...]) -> Iterator[tuple[torch.dtype, torch.Tensor]]:
    """Every type in every shape, of all ranks on top of each other."""
    for dtype, shape in product(dtypes, SHAPES):
        yield dtype, torch.stack([of_rank(rank, shape, dtype) for rank in ALL])


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Expects equal types and shapes, and elements up to rounding."""
    torch.testing.assert_close(actual, expected)


def goes_on() -> None:
    """Expects all ranks to come to the same place, with a session that works."""
    result = hvd.allreduce(torch.tensor([1]), op=hvd.Sum, name="goes on")
    assert result.item() == WORLD_SIZE, result
