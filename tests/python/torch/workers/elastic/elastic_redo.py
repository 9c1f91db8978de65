"""Trains the digits; a worker is killed amid a step, and the others lose nothing of it.

The doomed worker dies between the exchanges of two gradients. The others complete the step among
themselves, without going back to a commit. A probe tells that averages divide by those who
contributed. With `on_servers` the optimizer, Adam, is on the servers. Leaves the final parameters.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import sumpter.torch as hvd
from common import leave_result
from sumpter.torch import elastic

STEPS = 30
DEATH = 13  # 3 steps after a commit
COMMIT_EVERY = 5
BATCH = 48
ON_SERVERS = "on_servers" in sys.argv


def kill_this_process(_: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    hvd.init()
    digits = load_digits()
    data = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(digits.target)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if ON_SERVERS:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), on_servers=ON_SERVERS)
    batches = elastic.GlobalBatchSampler(labels, BATCH)
    state = elastic.TorchState(model=model, optimizer=optimizer, batches=batches, step=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    done: list[tuple[int, int]] = []  # step, and contributors to its probe

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        while state.step < STEPS:
            for index, own in enumerate(batches):
                if state.step == STEPS:
                    break
                if "doomed" in sys.argv and state.step == DEATH:
                    # The gradients of the second layer are with the others, the first one's not.
                    model[0].weight.register_hook(kill_this_process)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(data[own]), labels[own])
                (loss * batches.weight).backward()
                optimizer.step()
                batches.record_batch(index)
                total = hvd.allreduce(torch.ones(5000), op=hvd.Sum, name="sum")
                average = hvd.allreduce(torch.ones(5000), name="average")
                assert average.unique().tolist() == [1.0], average.unique()
                assert total.unique().numel() == 1, total.unique()
                done.append((state.step, int(total[0])))
                state.step += 1
                if state.step % COMMIT_EVERY == 0:
                    state.commit()
            batches.set_epoch(batches.epoch + 1)

    train(state)
    assert done == [(step, 3 if step < DEATH else 2) for step in range(STEPS)], done
    assert resets == [2], resets
    leave_result(torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes())


main()
