"""Trains a small convolutional network on scikit-learn's handwritten digits with DDP.

    python examples/digits.py                                alone
    torchrun --nproc-per-node 2 examples/digits.py           two workers, nothing else started
    sumpter run -n 2 -s 1 -- python examples/digits.py       two workers and a summation server

Every run sees the same batches and starts from the same weights, so they all end alike.
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from rich.progress import Progress
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sumpter

EPOCHS = 12
BATCH = 64  # over all workers
TARGET = 0.97
SEED = 1


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
    distributed = "RANK" in os.environ  # set by torchrun and by `sumpter run`
    if distributed:
        dist.init_process_group("sumpter")
    rank = dist.get_rank() if distributed else 0
    world_size = dist.get_world_size() if distributed else 1

    torch.manual_seed(SEED)
    images, labels, test_images, test_labels = load_split()
    model = make_model()
    trained = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(trained.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    shuffle = torch.Generator().manual_seed(SEED)
    steps = len(labels) // BATCH
    with Progress(disable=rank != 0) as progress, contextlib.ExitStack() as at_end:
        if distributed:
            at_end.callback(dist.destroy_process_group)
        bar = progress.add_task("training", total=EPOCHS * steps)
        for epoch in range(EPOCHS):
            order = torch.randperm(len(labels), generator=shuffle)
            for step in range(steps):
                # Each worker takes its share of the batch; the gradients' average over the
                # workers is the gradient of the whole batch.
                own = order[step * BATCH : (step + 1) * BATCH][rank::world_size]
                loss = nn.functional.cross_entropy(trained(images[own]), labels[own])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sumpter.record_samples(len(own))
                progress.update(bar, advance=1, description=f"epoch {epoch + 1}/{EPOCHS}")
            schedule.step()

    if rank != 0:
        return 0
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"accuracy on {len(test_labels)} held-out digits: {accuracy:.2%}", flush=True)
    if accuracy < TARGET:
        print(f"expected at least {TARGET:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
