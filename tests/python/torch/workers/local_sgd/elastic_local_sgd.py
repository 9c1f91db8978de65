"""DiLoCo or LocalSGD in an elastic job: workers die and join.

Each worker moves the parameter by a number of its own in each step, so that what a round averages
tells whose steps are in it: a death costs the dead worker's own, and a newcomer goes on from what
the others have. Leaves the parameters and the momentum.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, announce, leave_result
from sumpter.torch import elastic

SYNC_EVERY = 4
DEATH = 2  # rounds before it
REUNION = 4
ROUNDS = 6
STEP = 6.0 if "newcomer" in sys.argv else RANK + 1.0
# The averages of each round: of all three, of two, and of these with the newcomer.
EXPECTED = [2.0] * DEATH + [2.5] * (REUNION - DEATH) + [11.0 / 3.0] * (ROUNDS - REUNION)


def has_newcomer() -> bool:
    present = torch.tensor(float("newcomer" in sys.argv))
    return hvd.allreduce(present, op=hvd.Sum, name="newcomers").item() > 0


def main() -> None:
    hvd.init()
    model = nn.Linear(50, 40, bias=False)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    local: hvd.DiLoCo | hvd.LocalSGD
    if "diloco" in sys.argv:
        local = hvd.DiLoCo(model, inner, outer, SYNC_EVERY, on_servers="on_servers" in sys.argv)
    else:
        local = hvd.LocalSGD(model, inner, SYNC_EVERY)
    state = elastic.TorchState(model=model, local=local)

    announced: list[bool] = []

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        with local:
            while local.rounds < ROUNDS:
                if local.rounds == REUNION and not has_newcomer():
                    if RANK == 1 and not announced:
                        announced.append(True)
                        announce("alone")
                    # Until workers have joined, or have been missed, which begins this anew.
                    while True:
                        state.commit()
                for step in range(SYNC_EVERY):
                    if "doomed" in sys.argv and local.rounds == DEATH and step == 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    model.weight.grad = torch.full_like(model.weight, -STEP)
                    inner.step()
                # All have theta here, so nothing is lost if the workers change.
                state.commit()

    train(state)
    theta, momentum = torch.zeros(()), torch.zeros(())
    for average in EXPECTED:
        gradient = -average * SYNC_EVERY
        momentum = 0.9 * momentum + gradient
        outer_step = 0.5 * (gradient + 0.9 * momentum)
        theta = theta - (outer_step if "diloco" in sys.argv else gradient)
    torch.testing.assert_close(model.weight.detach(), theta.expand_as(model.weight))
    left = model.weight.detach().numpy().tobytes()
    if "diloco" in sys.argv:
        own = local.state_dict()["outer"]["state"][0]["momentum_buffer"]
        torch.testing.assert_close(own, momentum.expand_as(own))
        left += own.numpy().tobytes()
    leave_result(left)


main()
