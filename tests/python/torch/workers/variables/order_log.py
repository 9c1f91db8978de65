"""Trains asynchronously, with differing amounts of work, and writes down all that it gets."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
from torch import nn

import fake_device
import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises
from fake_device import module_on_fake, on_fake

parser = argparse.ArgumentParser()
parser.add_argument("--staleness", type=int)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--width", type=int, default=150)
# Only this rank takes more or fewer steps than the others.
parser.add_argument("--more", type=int, nargs=2, default=(0, 0), metavar=("RANK", "STEPS"))
parser.add_argument("--kill", type=int, nargs="*", default=[], metavar="PID")
parser.add_argument("--fails", nargs="*", metavar="WORDS")
parser.add_argument("--on-device", action="store_true")
args = parser.parse_args()


def digest(model: nn.Module) -> str:
    values = [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]
    return hashlib.sha256(b"".join(values)).hexdigest()


def train() -> None:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(20, args.width), nn.Tanh(), nn.Linear(args.width, 30))
    model = module_on_fake(model) if args.on_device else model
    adam = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    staleness = args.staleness
    optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), staleness=staleness)
    generator = torch.Generator().manual_seed(RANK)
    rank, more = args.more
    seen = []
    for step in range(args.steps + 2 * RANK + more * (rank == RANK)):
        # Ranks have differing amounts of work in a step.
        batch = 16 if RANK + 1 < WORLD_SIZE else 2000
        x = torch.randn(batch, 20, generator=generator)
        y = torch.randn(batch, 30, generator=generator)
        x, y = (on_fake(x), on_fake(y)) if args.on_device else (x, y)
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if RANK == 0 and step in (2, 7) and args.kill:
            os.kill(args.kill.pop(), signal.SIGKILL)
        optimizer.step()
        seen.append(digest(model))
        if step == 4:
            # As if from a checkpoint: all go on from the same.
            optimizer.synchronize()
            seen.append(digest(model))
            optimizer.load_state_dict(optimizer.state_dict())
    optimizer.synchronize()
    seen.append(digest(model))
    Path(os.environ["TEST_FOLDER"], f"result.{RANK}").write_text("\n".join(seen))


if args.on_device:
    fake_device.install(pause_s=0.001)
hvd.init()
if args.fails is None:
    train()
else:
    with raises(hvd.MismatchError, *args.fails):
        train()
hvd.shutdown()
