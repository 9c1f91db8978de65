"""A rank of a device group dies while the others wait for it."""

from __future__ import annotations

import os
import signal

import torch

import fake_device
import fake_group
import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises
from fake_device import on_fake

SIZE = 50_000

if __name__ == "__main__":
    fake_device.install(pause_s=0.001)
    fake_group.install()
    hvd.init()
    hvd.allreduce_(on_fake(torch.ones(SIZE)), op=hvd.Sum, name="t")
    hvd.barrier()
    if RANK == WORLD_SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = [
        hvd.allreduce_async_(on_fake(torch.ones(SIZE)), op=hvd.Sum, name=f"t{index}")
        for index in range(3)
    ]
    for handle in begun:
        with raises(hvd.PeerLostError):
            handle.synchronize()
    with raises(hvd.PeerLostError):
        hvd.allreduce_(on_fake(torch.ones(SIZE)), op=hvd.Sum, name="later")
