"""The digits of digits.py with workers that may die and join while it trains.

    sumpter run -n 3 --min-workers 2 -- python examples/elastic_digits.py
    sumpter run -n 3 --min-workers 2 -- python examples/elastic_digits.py --kill

With --kill a worker kills itself in the middle: the others go on with the step that it took part
in, a new one is started in its place and gets everything from them, if they are not done by then.
The batch over all workers stays the same, so the run ends like one in which nothing happened.
"""

import os
import signal
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import sumpter.torch as hvd
from sumpter.torch import elastic

EPOCHS = 12
BATCH = 64  # over all workers, however many there are
TARGET = 0.97
SEED = 1
KILL_AT_STEP = 60


def load_split() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, and every fifth of all held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main() -> int:
    hvd.init()
    torch.manual_seed(SEED)
    images, labels, test_images, test_labels = load_split()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = elastic.TorchState(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS),
        batches=elastic.GlobalBatchSampler(labels, BATCH, seed=SEED),
        step=0,
    )
    # Only a worker of the first hour, so that its successor lives.
    doomed = "--kill" in sys.argv and hvd.rank() == 1

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        print(f"rank {hvd.rank()} of {hvd.size()} begins at step {state.step}", flush=True)
        batches = state.batches
        while batches.epoch < EPOCHS:
            for index, own in enumerate(batches):
                if doomed and state.step == KILL_AT_STEP:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images[own]), labels[own])
                (loss * batches.weight).backward()
                optimizer.step()
                hvd.record_samples(len(own))
                batches.record_batch(index)
                state.step += 1
                if state.step % 5 == 0:
                    state.commit()
            state.schedule.step()
            batches.set_epoch(batches.epoch + 1)

    train(state)

    if hvd.rank() != 0:
        return 0
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"{state.step} steps; accuracy on {len(test_labels)} held-out digits: {accuracy:.2%}")
    if accuracy < TARGET:
        print(f"expected at least {TARGET:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
