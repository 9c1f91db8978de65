"""The coordinator ends and comes back: workers take back what they have not committed and go on."""

from __future__ import annotations

import torch
from common import WORLD_SIZE, announce

import sumpter.torch as hvd
from sumpter.torch import elastic

hvd.init()
state = elastic.ObjectState(step=0, generations=0)
again: list[int] = []
state.register_reset_callbacks([lambda: again.append(hvd.size())])


@elastic.run
def train(state: elastic.ObjectState) -> None:
    while not again:
        hvd.allreduce(torch.ones(3), name="gradient")
        state.step += 1
        state.commit()
        if state.step == 5 and hvd.rank() == 0:
            announce("at_work")
    assert state.step >= 5
    total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="gradient")
    assert total.tolist() == [WORLD_SIZE] * 3


train(state)
assert again == [WORLD_SIZE], again
