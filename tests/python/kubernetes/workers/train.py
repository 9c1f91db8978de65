"""Data-parallel steps of a node's process, until the test has seen enough; started by torchrun.

Every step's sum is checked, so that a step that is lost or counted twice fails the process.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(os.environ["TEST_FOLDER"])

dist.init_process_group("sumpter")
rank, size = dist.get_rank(), dist.get_world_size()
step, over = 0, False
while not over:
    gradient = torch.full((1 << 18,), float(step + rank))
    # The decision to stop is summed as well, so that all ranks take it in the same step.
    gradient[0] = float(rank == 0 and (FOLDER / "enough").exists())
    dist.all_reduce(gradient)
    over = gradient[0].item() > 0
    expected = size * step + size * (size - 1) / 2
    assert (gradient[1:] == expected).all(), f"step {step}: {gradient[1:]} is not {expected}"
    step += 1
    if step % 20 == 0:
        (FOLDER / f"step.{rank}").write_text(str(step))
print(f"rank {rank} of {size} took {step} steps")
dist.destroy_process_group()
