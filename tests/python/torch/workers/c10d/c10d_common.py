"""What the worker scripts that compare torch.distributed with expected values share.

Every rank can make every rank's input from a seed, so the expected value is computed locally.
"""

from __future__ import annotations

import datetime
import itertools
import random
import sys

import torch
import torch.distributed as dist

from common import FOLDER, RANK, WORLD_SIZE

# Scripts run over Gloo, too, to check what they expect.
BACKEND = sys.argv[1] if len(sys.argv) > 1 else "sumpter"
LAST = WORLD_SIZE - 1
NEXT, BEFORE = (RANK + 1) % WORLD_SIZE, (RANK - 1) % WORLD_SIZE

SUMMED = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
)
MOVED = (*SUMMED, torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn)

torch.set_printoptions(threshold=20)
_choices = random.Random(WORLD_SIZE)
_seeds = itertools.count()
_meetings = itertools.count()


def join(backend: str = BACKEND, timeout_s: float = 300.0, init_method: str = "") -> None:
    """Joins torch.distributed, by default through a file that is new each time."""
    # Torch was imported before this process had an environment of its own.
    dist.set_debug_level_from_env()
    dist.init_process_group(
        backend,
        init_method=init_method or f"file://{FOLDER}/store{next(_meetings)}",
        rank=RANK,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(seconds=timeout_s),
    )


def some_shape() -> tuple[int, ...]:
    """A shape, the same on all ranks: a number, nothing, a vector, a matrix, a block."""
    shapes = ((), (0,), (3, 0), (1,), (7,), (2, 3), (5, 4, 3), (1025,))
    return _choices.choice(shapes)


def some_layout(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, possibly with gaps, at an odd address or in another order."""
    kind = _choices.randrange(4)
    if kind == 1 and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 2 and tensor.dim() > 0:
        wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]
    if kind == 3:
        bucket = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)
        view = bucket[3:].view(tensor.shape)
        return view.copy_(tensor)
    return tensor.clone()


def every_rank(shape: tuple[int, ...], dtype: torch.dtype, low: int = 1) -> list[torch.Tensor]:
    """Small whole numbers for each rank: their sums and products are exact in every type."""
    seed = next(_seeds)
    return [
        torch.randint(low, 4, shape, generator=torch.Generator().manual_seed(31 * seed + rank)).to(
            dtype
        )
        for rank in range(WORLD_SIZE)
    ]


def total(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum, of the element type of the addends."""
    return torch.stack(tensors).sum(0, dtype=tensors[0].dtype)


def equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Expects equal types, shapes and elements; also of types that torch cannot compare."""
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert torch.equal(_bytes(actual), _bytes(expected)), (actual, expected)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8)


def agree(tensor: torch.Tensor) -> None:
    """Expects the same bytes on every rank."""
    copies = [torch.empty_like(tensor) for _ in range(WORLD_SIZE)]
    dist.all_gather(copies, tensor)
    for copy in copies:
        equal(copy, tensor)
