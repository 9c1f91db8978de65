"""The digits of digits.py with the interface of Horovod: only the import line is Sumpter's.

    python examples/digits_horovod.py
    torchrun --nproc-per-node 2 examples/digits_horovod.py
    sumpter run -n 2 -s 1 -- python examples/digits_horovod.py

A script written for BytePS changes its import line in the same way. With --overlap each forward
pass begins before all gradients of the step before it have arrived; --compression CODEC sends
gradients in fewer bytes, such as bf16, int8 or topk:k=0.1.
"""

import argparse
import sys

import torch
from rich.progress import Progress
from sklearn.datasets import load_digits
from torch import nn

import sumpter.torch as hvd

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overlap", action="store_true", help="begin before gradients arrive")
    parser.add_argument("--compression", default="none", help="a codec, such as int8")
    options = parser.parse_args()
    hvd.init()

    torch.manual_seed(SEED + hvd.rank())  # the broadcast below makes the ranks equal
    images, labels, test_images, test_labels = load_split()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=options.compression,
        overlap_forward=options.overlap,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    shuffle = torch.Generator().manual_seed(SEED)
    steps = len(labels) // BATCH
    with Progress(disable=hvd.rank() != 0) as progress:
        bar = progress.add_task("training", total=EPOCHS * steps)
        for epoch in range(EPOCHS):
            order = torch.randperm(len(labels), generator=shuffle)
            for step in range(steps):
                own = order[step * BATCH : (step + 1) * BATCH][hvd.rank() :: hvd.size()]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images[own]), labels[own])
                loss.backward()
                optimizer.step()
                hvd.record_samples(len(own))
                progress.update(bar, advance=1, description=f"epoch {epoch + 1}/{EPOCHS}")
            schedule.step()

    # Every worker judges its share of the held-out digits.
    own = slice(hvd.rank(), None, hvd.size())
    with torch.no_grad():
        right = (model(test_images[own]).argmax(1) == test_labels[own]).sum()
    accuracy = hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(test_labels)
    if hvd.rank() == 0:
        print(f"accuracy on {len(test_labels)} held-out digits: {accuracy:.2%}", flush=True)
    hvd.shutdown()
    if accuracy < TARGET:
        print(f"expected at least {TARGET:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
