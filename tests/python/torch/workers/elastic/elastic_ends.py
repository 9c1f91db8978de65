"""The last rank dies; the other is alone, and its error must say that this is too few."""

from __future__ import annotations

import os
import signal

import torch

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises
from sumpter.torch import elastic

hvd.init()
state = elastic.ObjectState(step=0)
begun: list[int] = []


@elastic.run
def train(state: elastic.ObjectState) -> None:
    begun.append(hvd.size())
    while state.step < 10:
        if RANK == WORLD_SIZE - 1 and state.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(3), name="gradient")
        state.step += 1
        state.commit()


with raises(hvd.StartError, "1 of at least 2 workers"):
    train(state)
assert begun == [WORLD_SIZE], begun
