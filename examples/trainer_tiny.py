"""Trains a tiny vision transformer, made from a configuration, with transformers' Trainer.

    torchrun --nproc-per-node 2 examples/trainer_tiny.py
    sumpter run -n 2 -s 1 -- python examples/trainer_tiny.py

It learns the digits of digits.py; nothing is downloaded. On CPU the Trainer insists on Gloo,
unless the script has made its process group already.
"""

import argparse
import sys
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

EPOCHS = 8
BATCH = 64  # over all workers
TARGET = 0.9
SEED = 1


def load_split() -> tuple[list[dict], list[dict]]:
    """Images and labels to train on, and every fifth of all held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    pairs = zip(images, digits.target, strict=True)
    rows = [{"pixel_values": image, "labels": label} for image, label in pairs]
    return [row for i, row in enumerate(rows) if i % 5 != 0], rows[::5]


def make_model() -> nn.Module:
    config = ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=10,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.1,
    )
    return ViTForImageClassification(config)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="sumpter", help="of torch.distributed")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 leaves the trained weights")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    set_seed(SEED)
    trained_on, held_out = load_split()
    share = BATCH // dist.get_world_size()
    trainer = Trainer(
        model=make_model(),
        args=TrainingArguments(
            output_dir=tempfile.gettempdir(),
            use_cpu=True,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=share,
            per_device_eval_batch_size=share,
            learning_rate=5e-3,
            seed=SEED,
            ddp_find_unused_parameters=False,
            logging_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=trained_on,
        eval_dataset=held_out,
        compute_metrics=lambda seen: {
            "accuracy": (seen.predictions.argmax(1) == seen.label_ids).mean()
        },
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    weights = nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
    copies = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, weights)
    alike = all(torch.equal(copy, weights) for copy in copies)
    if dist.get_rank() == 0:
        print(f"accuracy on {len(held_out)} held-out digits: {accuracy:.2%}")
        over = dist.get_backend()
        print(f"all {len(copies)} workers hold the same weights over {over}: {alike}", flush=True)
        if arguments.save:
            torch.save(trainer.model.state_dict(), arguments.save)
    dist.destroy_process_group()
    return 0 if alike and accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
