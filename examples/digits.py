"""Trains a small convolutional network on scikit-learn's handwritten digits with DDP.

    python examples/digits.py                                alone
    torchrun --nproc-per-node 2 examples/digits.py           two workers, nothing else started
    sumpter run -n 2 -s 1 -- python examples/digits.py       two workers and a summation server

Every run sees the same batches and starts from the same weights, so they all end alike. `--epochs`
or `--seconds` say how long, `--digest` shows that they do: sumpter bench chaos uses them.
"""

import argparse
import contextlib
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from rich.progress import Progress
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sumpter

EPOCHS = 12  # of one cycle of the learning rate, and by default of training
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


def is_over(options: argparse.Namespace, epochs: int, started_s: float, rank: int) -> bool:
    """Whether that many epochs are enough; the same on every rank."""
    if options.seconds is None:
        return epochs == options.epochs
    enough = torch.tensor(float(rank == 0 and time.monotonic() - started_s >= options.seconds))
    if dist.is_initialized():
        dist.all_reduce(enough)
    return enough.item() > 0


def digest(model: nn.Module) -> str:
    """The sha256 of all parameters' bytes."""
    whole = hashlib.sha256()
    for tensor in model.state_dict().values():
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seconds", type=float, help="until then, instead of --epochs")
    parser.add_argument("--digest", action="store_true", help="print the parameters' sha256")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
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
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, EPOCHS)

    shuffle = torch.Generator().manual_seed(SEED)
    steps = len(labels) // BATCH
    with Progress(disable=rank != 0) as progress, contextlib.ExitStack() as at_end:
        if distributed:
            at_end.callback(dist.destroy_process_group)
        bar = progress.add_task(
            "training", total=None if options.seconds else options.epochs * steps
        )
        started_s, epochs = time.monotonic(), 0
        while not is_over(options, epochs, started_s, rank):
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
                progress.update(bar, advance=1, description=f"epoch {epochs + 1}")
            schedule.step()
            epochs += 1

    if options.digest:
        print(f"trained {epochs} epochs, parameters {digest(model)}", flush=True)

    if rank != 0:
        return 0
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"accuracy on {len(test_labels)} held-out digits: {accuracy:.2%}", flush=True)
    if epochs >= EPOCHS and accuracy < TARGET:
        print(f"expected at least {TARGET:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
