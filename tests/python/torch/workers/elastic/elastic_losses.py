"""A worker is lost outside of training steps, and the others train on without it.

Those that are lost say how: `exits`, with an error's exit code after init(); `seated`, killed when
they have a seat and have not joined yet; `resets`, killed in a reset callback that communicates.
With `announces`, rank 0 says when all are at work, so that one of them can be killed. The others
leave the numbers of workers that their generations had.
"""

from __future__ import annotations

import os
import signal
import sys

import torch

import sumpter.torch as hvd
from common import announce, leave_result
from sumpter._core import seat
from sumpter.torch import elastic

LEFT = int(sys.argv[1])
HOW = sys.argv[2] if len(sys.argv) > 2 else ""
FURTHER_STEPS = 5

take = seat.take


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def take_and_die(*given: object) -> None:
    take(*given)  # type: ignore[arg-type]
    kill_this_process()


if HOW == "seated":
    seat.take = take_and_die  # type: ignore[assignment]
hvd.init()
if HOW == "exits":
    sys.exit(3)
sizes = [hvd.size()]
state = elastic.ObjectState(step=0)


def reset() -> None:
    if HOW == "resets":
        kill_this_process()
    hvd.allreduce(torch.ones(3), name="reset")
    sizes.append(hvd.size())


state.register_reset_callbacks([reset])


@elastic.run
def train(state: elastic.ObjectState) -> None:
    while state.step < FURTHER_STEPS or hvd.size() > LEFT:
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="gradient")
        assert total.min() >= LEFT, total
        # A newcomer has no steps, and all have those of the oldest worker.
        state.step += 1
        if HOW == "announces" and state.step == 1 and hvd.rank() == 0:
            announce("at_work")
        state.commit()


train(state)
leave_result(repr(sizes).encode())
