"""The digits of digits.py with few exchanges: DiLoCo, or LocalSGD.

    sumpter run -n 2 -s 1 -- python examples/diloco_digits.py                 DiLoCo
    sumpter run -n 2 -s 1 -- python examples/diloco_digits.py --local-sgd     averages

Each worker trains on digits of its own for `--sync-every` steps. Then the differences are averaged,
and an outer optimizer on the servers takes a step with them. Half of the model is sent at a time,
and its result is used two steps later.
"""

import argparse
import sys

import torch
from rich.progress import Progress
from sklearn.datasets import load_digits
from torch import nn

import sumpter.torch as hvd

EPOCHS = 20
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


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train with an exchange every so many steps.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--sync-every", type=int, default=20, help="local steps in a round")
    parser.add_argument("--local-sgd", action="store_true", help="average, without outer optimizer")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    hvd.init()

    torch.manual_seed(SEED)
    images, labels, test_images, test_labels = load_split()
    model = make_model()
    inner = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if options.local_sgd:
        local = hvd.LocalSGD(model, inner, options.sync_every)
    else:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.8, nesterov=True)
        local = hvd.DiLoCo(
            model, inner, outer, options.sync_every, fragments=2, fragment_sync_delay=2
        )

    # The digits of this worker alone, as many as of any other.
    steps = len(labels) // BATCH
    batch = BATCH // hvd.size()
    own = torch.arange(hvd.rank(), steps * batch * hvd.size(), hvd.size())
    shuffle = torch.Generator().manual_seed(SEED + hvd.rank())
    with local, Progress(disable=hvd.rank() != 0) as progress:
        bar = progress.add_task("training", total=options.epochs * steps)
        for epoch in range(options.epochs):
            order = own[torch.randperm(len(own), generator=shuffle)]
            for step in range(steps):
                chosen = order[step * batch : (step + 1) * batch]
                inner.zero_grad()
                nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
                inner.step()
                hvd.record_samples(len(chosen))
                progress.update(bar, advance=1, description=f"epoch {epoch + 1}")
    if options.local_sgd:
        local.sync()
    else:
        # What all ranks have in common, without the steps that were not sent yet.
        model.load_state_dict(local.global_parameters())

    is_first, rounds = hvd.rank() == 0, local.rounds
    hvd.shutdown()
    if not is_first:
        return 0
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"{options.epochs * steps} steps, {rounds} rounds", flush=True)
    print(f"accuracy on {len(test_labels)} held-out digits: {accuracy:.2%}", flush=True)
    if options.epochs >= EPOCHS and accuracy < TARGET:
        print(f"expected at least {TARGET:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
