"""The digits of digits.py with the optimizer on the servers: AdamW runs where gradients are summed.

    python examples/server_optimizer_digits.py                               alone
    sumpter run -n 2 -s 1 -- python examples/server_optimizer_digits.py      on a server as well

`--epochs` or `--seconds` say how long; `--digest` shows that every run ends alike, in parameters
and in the optimizer's state: sumpter bench chaos uses them and kills the servers meanwhile.
`--clip` clips the gradients by their norm.
"""

import argparse
import hashlib
import sys
import time

import torch
from rich.progress import Progress
from sklearn.datasets import load_digits
from torch import nn

import sumpter.torch as hvd

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


def is_over(options: argparse.Namespace, epochs: int, started_s: float) -> bool:
    """Whether that many epochs are enough; the same on every rank."""
    if options.seconds is None:
        return epochs == options.epochs
    is_late = hvd.rank() == 0 and time.monotonic() - started_s >= options.seconds
    return hvd.allreduce(torch.tensor(float(is_late)), op=hvd.Sum, name="is over").item() > 0


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """The sha256 of all parameters and of the optimizer's state; every rank must call this."""
    whole = hashlib.sha256()
    state = optimizer.state_dict()["state"]
    slots = [state[index][slot] for index in sorted(state) for slot in ("exp_avg", "exp_avg_sq")]
    for tensor in (*model.state_dict().values(), *slots):
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train with the optimizer on the servers.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seconds", type=float, help="until then, instead of --epochs")
    parser.add_argument("--clip", type=float, metavar="NORM", help="clip gradients by their norm")
    parser.add_argument("--digest", action="store_true", help="print what it ends with, as sha256")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    hvd.init()

    torch.manual_seed(SEED)
    images, labels, test_images, test_labels = load_split()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), on_servers=True, deferred=options.clip is not None
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, EPOCHS)

    shuffle = torch.Generator().manual_seed(SEED)
    steps = len(labels) // BATCH
    with Progress(disable=hvd.rank() != 0) as progress:
        total = None if options.seconds else options.epochs * steps
        bar = progress.add_task("training", total=total)
        started_s, epochs = time.monotonic(), 0
        while not is_over(options, epochs, started_s):
            order = torch.randperm(len(labels), generator=shuffle)
            for step in range(steps):
                own = order[step * BATCH : (step + 1) * BATCH][hvd.rank() :: hvd.size()]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images[own]), labels[own])
                loss.backward()
                if options.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), options.clip)
                optimizer.step()
                hvd.record_samples(len(own))
                progress.update(bar, advance=1, description=f"epoch {epochs + 1}")
            schedule.step()
            epochs += 1

    if options.digest:
        print(f"trained {epochs} epochs, parameters {digest(model, optimizer)}", flush=True)

    is_first = hvd.rank() == 0
    hvd.shutdown()
    if not is_first:
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
