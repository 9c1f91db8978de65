"""The coordinator ends and comes back: workers go on in the same generation."""

from __future__ import annotations

import torch

import sumpter.torch as hvd
from common import FOLDER, WORLD_SIZE, announce
from sumpter.torch import elastic

hvd.init()
state = elastic.ObjectState(step=0)
again: list[int] = []
state.register_reset_callbacks([lambda: again.append(hvd.size())])


@elastic.run
def train(state: elastic.ObjectState) -> None:
    back = torch.zeros(1)
    while not back.item():
        back = torch.tensor([float((FOLDER / "back").exists())])
        back = hvd.allreduce(back, op=hvd.Min, name="back")
        state.step += 1
        state.commit()
        if state.step == 5 and hvd.rank() == 0:
            announce("at_work")
    # Only a coordinator can number this.
    total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="after")
    assert total.tolist() == [WORLD_SIZE] * 3
    assert state.step >= 5


train(state)
assert not again, again
