"""The digits of digits.py with Hugging Face accelerate.

    torchrun --nproc-per-node 2 examples/accelerate_digits.py
    sumpter run -n 2 -s 1 -- python examples/accelerate_digits.py

On CPU accelerate insists on Gloo, unless the script has made its process group already.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 8
BATCH = 64  # over all workers
TARGET = 0.95
SEED = 1


def load_split() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels to train on, and every fifth of all held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    trained_on = TensorDataset(images[~held_out], labels[~held_out])
    return trained_on, TensorDataset(images[held_out], labels[held_out])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="sumpter", help="of torch.distributed")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 leaves the trained weights")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    set_seed(SEED)
    accelerator = Accelerator(cpu=True)
    trained_on, held_out = load_split()
    share = BATCH // accelerator.num_processes
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer, batches, tests = accelerator.prepare(
        model,
        optimizer,
        DataLoader(trained_on, batch_size=share, shuffle=True),
        DataLoader(held_out, batch_size=share),
    )

    for epoch in range(EPOCHS):
        losses = []
        for images, labels in batches:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        loss = accelerator.reduce(torch.stack(losses).mean(), "mean")
        if accelerator.is_main_process:
            print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)

    right = []
    with torch.no_grad():
        for images, labels in tests:
            right.append(accelerator.gather_for_metrics(model(images).argmax(1) == labels))
    accuracy = torch.cat(right).float().mean().item()
    weights = nn.utils.parameters_to_vector(model.parameters())
    copies = accelerator.gather(weights.detach()[None])
    alike = bool((copies == copies[0]).all())
    if accelerator.is_main_process:
        print(f"accuracy on {len(held_out)} held-out digits: {accuracy:.2%}")
        over = dist.get_backend()
        print(f"all {len(copies)} workers hold the same weights over {over}: {alike}", flush=True)
    if arguments.save:
        accelerator.save(accelerator.get_state_dict(model), arguments.save)
    accelerator.end_training()
    return 0 if alike and accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
