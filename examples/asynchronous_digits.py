"""The digits with ranks that do not wait for each other: one of them computes more slowly.

    sumpter run -n 3 -s 1 -- python examples/asynchronous_digits.py
    sumpter run -n 3 -s 1 -- python examples/asynchronous_digits.py --staleness 4

Each rank takes steps of its own and adds them to parameters that all share; the last rank computes
each step `--slow` times. Rank 0 prints how many steps each rank took, and what they have learned.
"""

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import sumpter.torch as hvd

BATCH = 32  # of one rank
TARGET = 0.94
SEED = 1


def load_split() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, and every fifth of all held out."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def bound(text: str) -> int | None:
    """A number of steps, or none."""
    return None if text == "none" else int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train asynchronously.")
    parser.add_argument("--staleness", type=bound, default=None, help="steps, or none")
    parser.add_argument("--steps", type=int, default=900, help="of all ranks but the last")
    parser.add_argument("--slow", type=int, default=4, help="times the last rank computes a step")
    options = parser.parse_args()
    hvd.init()

    torch.manual_seed(SEED)
    images, labels, test_images, test_labels = load_split()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    optimizer = hvd.DistributedOptimizer(
        adam, model.named_parameters(), staleness=options.staleness
    )

    is_slow = hvd.size() > 1 and hvd.rank() == hvd.size() - 1
    times = options.slow if is_slow else 1
    steps = options.steps // times
    draw = torch.Generator().manual_seed(SEED + hvd.rank())
    for _ in range(steps):
        own = torch.randint(len(labels), (BATCH,), generator=draw)
        optimizer.zero_grad()
        for _ in range(times):
            loss = nn.functional.cross_entropy(model(images[own]), labels[own])
        loss.backward()
        optimizer.step()
        hvd.record_samples(len(own))
    # All steps of all ranks are in the parameters now, which are the same everywhere.
    optimizer.synchronize()

    taken = hvd.allgather(torch.tensor([steps])).tolist()
    right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    if hvd.rank() == 0:
        print(f"steps by rank: {taken}", flush=True)
        print(f"accuracy on {len(test_labels)} held-out digits: {right:.2%}", flush=True)
    hvd.shutdown()
    return 0 if right >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
