"""All-reduces of a device group while a server is killed in the middle of a round.

Argument: the server's process.
"""

from __future__ import annotations

import os
import signal
import sys

import torch

import fake_device
import fake_group
import sumpter.torch as hvd
from common import ALL, RANK
from fake_device import on_fake
from sumpter._core import staging

SIZE, STEPS = 100_003, 12


def values(rank: int, step: int) -> torch.Tensor:
    return ((torch.arange(SIZE) + step) % 97 + 100 * rank).float()


if __name__ == "__main__":
    staging.SLICE_BYTES = 8192
    fake_device.install(pause_s=0.001)
    fake_group.install()
    hvd.init()
    for step in range(STEPS):
        tensors = [on_fake(values(RANK, step + index)) for index in range(3)]
        begun = [
            hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"t{index}")
            for index, tensor in enumerate(tensors)
        ]
        if step == STEPS // 2 and RANK == 0:
            os.kill(int(sys.argv[3]), signal.SIGKILL)
        for index, handle in enumerate(begun):
            total = sum(values(rank, step + index) for rank in ALL)
            assert torch.equal(handle.synchronize().cpu(), total), (step, index)
    hvd.shutdown()
    assert not fake_device.errors, fake_device.errors
