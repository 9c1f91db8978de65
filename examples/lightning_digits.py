"""The digits of digits.py with Lightning: the backend is an argument of its DDPStrategy.

torchrun --nproc-per-node 2 examples/lightning_digits.py
sumpter run -n 2 -s 1 -- python examples/lightning_digits.py
"""

import argparse
import os
import sys

import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 8
BATCH = 64  # over all workers
TARGET = 0.95
SEED = 1


class Digits(LightningModule):
    """A small convolutional network, how it learns and how it is judged."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        right = self.network(batch[0]).argmax(1) == batch[1]
        self.log("accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def load_split() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels to train on, and every fifth of all held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    trained_on = TensorDataset(images[~held_out], labels[~held_out])
    return trained_on, TensorDataset(images[held_out], labels[held_out])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="sumpter", help="of torch.distributed")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 leaves the trained weights")
    arguments = parser.parse_args()

    seed_everything(SEED, verbose=False)
    world_size, local_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    trained_on, held_out = load_split()
    model = Digits()
    trainer = Trainer(
        accelerator="cpu",
        devices=local_size,
        num_nodes=world_size // local_size,
        strategy=DDPStrategy(process_group_backend=arguments.backend),
        plugins=[TorchElasticEnvironment()],  # ranks from the environment, whoever set them
        max_epochs=EPOCHS,
        check_val_every_n_epoch=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    batches = DataLoader(trained_on, batch_size=BATCH // world_size, shuffle=True)
    trainer.fit(model, batches, DataLoader(held_out, batch_size=BATCH))
    accuracy = trainer.callback_metrics["accuracy"].item()
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    copies = trainer.strategy.all_gather(weights)
    alike = bool((copies == weights).all())
    if trainer.is_global_zero:
        print(f"training loss {trainer.callback_metrics['loss']:.4f}")
        print(f"accuracy on {len(held_out)} held-out digits: {accuracy:.2%}")
        over = torch.distributed.get_backend()
        print(f"all {len(copies)} workers hold the same weights over {over}: {alike}", flush=True)
        if arguments.save:
            torch.save(model.network.state_dict(), arguments.save)
    torch.distributed.destroy_process_group()
    return 0 if alike and accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
