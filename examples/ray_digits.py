"""The digits of digits.py on a Ray cluster: ranks on some nodes, a helper on another.

    python examples/ray_digits.py                            two workers on this machine
    python examples/ray_digits.py --nodes 3 --helpers 1      a cluster of three nodes, made here
    RAY_ADDRESS=auto python examples/ray_digits.py --workers 8 --gpu --helpers 4

A helper is a Sumpter server on a CPU node: it carries summation. When a worker fails, Ray starts
all of them anew, from the last checkpoint; when a helper fails, it alone is started anew.
"""

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from sklearn.datasets import load_digits
from torch import nn

from sumpter.ray import SumpterConfig

EPOCHS = 12  # of the learning rate's cycle, and by default of training
BATCH = 64  # over all workers
TARGET = 0.97
SEED = 1
STATE = "state.pt"


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


def train(config: dict) -> dict:
    """What each worker does; rank 0's result is that of the run."""
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    device = get_device()
    torch.manual_seed(SEED)
    images, labels, test_images, test_labels = (part.to(device) for part in load_split())
    model = prepare_model(make_model())  # DistributedDataParallel over Sumpter
    plain = getattr(model, "module", model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, EPOCHS)
    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / STATE, map_location=device)
        first = state["epochs"]
        for part, known in zip((plain, optimizer, schedule), state["parts"], strict=True):
            part.load_state_dict(known)

    shuffle = torch.Generator().manual_seed(SEED)
    orders = [torch.randperm(len(labels), generator=shuffle) for _ in range(config["epochs"])]
    for epoch in range(first, config["epochs"]):
        for step in range(len(labels) // BATCH):
            # Each worker takes its share of the batch; the average of the gradients over the
            # workers is the gradient of the whole batch.
            own = orders[epoch][step * BATCH : (step + 1) * BATCH][rank::world_size]
            loss = nn.functional.cross_entropy(model(images[own]), labels[own])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        with tempfile.TemporaryDirectory() as folder:
            kept = None
            if rank == 0:
                parts = [part.state_dict() for part in (plain, optimizer, schedule)]
                torch.save({"epochs": epoch + 1, "parts": parts}, Path(folder) / STATE)
                kept = Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch + 1, "loss": loss.item()}, checkpoint=kept)

    whole = hashlib.sha256()
    for tensor in plain.state_dict().values():
        whole.update(tensor.cpu().numpy().tobytes())
    with torch.no_grad():
        right = plain(test_images).argmax(1) == test_labels
    return {"accuracy": right.float().mean().item(), "digest": whole.hexdigest()}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--helpers", type=int, default=0, help="each on a CPU node of its own")
    parser.add_argument("--cpus-per-helper", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--nodes", type=int, help="of a cluster that is made on this machine")
    parser.add_argument("--storage", help="folder or URL that all nodes reach, for checkpoints")
    parser.add_argument("--digest", action="store_true", help="print the parameters' sha256")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    if options.nodes:
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        for _ in range(options.nodes - 1):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address)
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": options.epochs},
        torch_config=SumpterConfig(
            helpers=options.helpers, resources_per_helper={"CPU": options.cpus_per_helper}
        ),
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=options.gpu),
        run_config=RunConfig(
            storage_path=options.storage, failure_config=FailureConfig(max_failures=2)
        ),
    )
    result = trainer.fit().return_value
    if options.digest:
        print(f"trained {options.epochs} epochs, parameters {result['digest']}")
    print(f"accuracy on 360 held-out digits: {result['accuracy']:.2%}")
    ray.shutdown()  # before the nodes end of a cluster that was made here
    return int(options.epochs >= EPOCHS and result["accuracy"] < TARGET)


if __name__ == "__main__":
    sys.exit(main())
