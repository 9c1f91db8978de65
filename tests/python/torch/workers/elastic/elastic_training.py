"""Trains the digits with workers that die and join, and compares with one process alone.

One worker is killed between the exchanges of two gradients of one step. The others redo what was
after the last commit, and go on until another has taken its place. With `on_servers` the optimizer,
Adam, is on the servers: each share of its state was kept by two workers in that commit. Leaves the
final parameters.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import sumpter.torch as hvd
from common import announce, leave_result
from sumpter.torch import elastic

STEPS = 60
DEATH = 23  # 3 steps after a commit
REUNION = 40
COMMIT_EVERY = 5
BATCH = 50  # not a multiple of 2 or 3 ranks
RANKS = 3
ON_SERVERS = "on_servers" in sys.argv

# Sums of other groupings differ in the last bits; 60 steps carry that on without amplifying it
# much, while a lost or doubled step moves parameters by 1e-3 and more.
TOLERANCE = 1e-4


def make_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    if ON_SERVERS:
        return model, torch.optim.Adam(model.parameters(), lr=0.002, eps=1e-3)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def load() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16.0, torch.tensor(digits.target)


def flatten(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def kill_this_process(_: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_alone() -> tuple[torch.Tensor, float]:
    """Parameters and last loss of one process with the whole batches."""
    data, labels = load()
    model, optimizer = make_training()
    batches = elastic.GlobalBatchSampler(labels, BATCH)
    batches.rank, batches.num_replicas = 0, 1
    loss, step = torch.zeros(()), 0
    while step < STEPS:
        for batch in batches:
            if step == STEPS:
                break
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            step += 1
        batches.set_epoch(batches.epoch + 1)
    return flatten(model), loss.item()


def main() -> None:
    hvd.init()
    data, labels = load()
    model, optimizer = make_training()
    doomed = "doomed" in sys.argv
    if "newcomer" in sys.argv:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # what it trains with must come from the others
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), on_servers=ON_SERVERS)
    batches = elastic.GlobalBatchSampler(labels, BATCH)
    state = elastic.TorchState(
        model=model, optimizer=optimizer, batches=batches, step=0, sizes=[], loss=0.0
    )
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @elastic.run
    def train(state: elastic.TorchState) -> str:
        assert "newcomer" not in sys.argv or state.step >= REUNION
        while state.step < STEPS:
            for index, own in enumerate(batches):
                if doomed and state.step == DEATH:
                    # The gradients of the second layer are with the others, the first one's not.
                    model[0].weight.register_hook(kill_this_process)
                if state.step == REUNION and hvd.size() < RANKS:
                    if hvd.rank() == 0:
                        announce("alone")
                    while True:  # until the commit is interrupted
                        state.commit()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(data[own]), labels[own])
                (loss * batches.weight).backward()
                optimizer.step()
                batches.record_batch(index)
                state.step += 1
                state.sizes.append(hvd.size())
                state.loss = hvd.allreduce(loss.detach() * batches.weight, name="loss").item()
                if state.step % COMMIT_EVERY == 0:
                    state.commit()
                if state.step == STEPS:
                    return "done"
            batches.set_epoch(batches.epoch + 1)
        return "done"

    assert train(state) == "done"
    assert state.sizes == [3] * 20 + [2] * 20 + [3] * 20, state.sizes
    assert resets == ([] if "newcomer" in sys.argv else [2, 3]), resets
    assert len(optimizer.state_dict()["state"]) == 4
    expected, loss = train_alone()
    error = (flatten(model) - expected).abs().max().item()
    assert error <= TOLERANCE, f"differs by {error}"
    assert abs(state.loss - loss) <= TOLERANCE, (state.loss, loss)
    leave_result(flatten(model).numpy().tobytes())


main()
