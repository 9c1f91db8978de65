"""A small GPT and a CNN: with the optimizer on the servers their losses are those of the workers'.

The models and data are those of the examples. Both runs of a model begin alike and see the same
batches, so that the losses of each step differ by rounding only: AdamW's in the last bits, where
torch's square root is not rounded correctly. Training makes more of it with each step. After 60 the
losses differed by 5e-7 of their value at most, where this was written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE

sys.path.insert(0, str(Path(__file__).resolve().parents[5] / "examples"))
import server_optimizer_digits as digits
import tiny_gpt as gpt

STEPS = 60
BATCH = 8  # on each rank
TOLERANCE = 1e-4

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def texts() -> Batches:
    text, window = gpt.load_text(), torch.arange(gpt.CONTEXT + 1)
    chooser = torch.Generator().manual_seed(gpt.SEED)
    while True:
        starts = torch.randint(len(text) - gpt.CONTEXT, (BATCH * WORLD_SIZE, 1), generator=chooser)
        sample = text[starts[RANK::WORLD_SIZE] + window]
        yield sample[:, :-1], sample[:, 1:]


def images() -> Batches:
    images, labels, *_ = digits.load_split()
    chooser = torch.Generator().manual_seed(digits.SEED)
    while True:
        chosen = torch.randint(len(labels), (BATCH * WORLD_SIZE,), generator=chooser)
        own = chosen[RANK::WORLD_SIZE]
        yield images[own], labels[own]


def curve(make: Callable[[], nn.Module], batches: Batches, on_servers: bool) -> list[float]:
    """The average over the ranks of the loss of each step."""
    torch.manual_seed(1)
    model = make()
    adamw = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    optimizer = hvd.DistributedOptimizer(adamw, model.named_parameters(), on_servers=on_servers)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=5e-3, total_steps=STEPS, cycle_momentum=False
    )
    losses = []
    for _ in range(STEPS):
        x, y = next(batches)
        optimizer.zero_grad()
        outputs = model(x).reshape(y.numel(), -1)
        loss = F.cross_entropy(outputs, y.flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item())
    return losses


hvd.init()
kinds: list[tuple[Callable[[], nn.Module], Callable[[], Batches]]] = [
    (gpt.TinyGPT, texts),
    (digits.make_model, images),
]
for make, batches in kinds:
    workers, servers = (curve(make, batches(), on_servers) for on_servers in (False, True))
    distances = [abs(one - other) / one for one, other in zip(workers, servers, strict=True)]
    print(f"{make.__name__}: {workers[0]:.3f} to {workers[-1]:.3f}, {max(distances):.1e} apart")
    assert max(distances) < TOLERANCE, list(zip(workers, servers, strict=True))
    assert workers[-1] < 0.8 * workers[0], "it learned something"
hvd.shutdown()
