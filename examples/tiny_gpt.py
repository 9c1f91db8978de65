"""Trains a small GPT on the source of Python's own standard library, then lets it write.

    python examples/tiny_gpt.py
    torchrun --nproc-per-node 2 examples/tiny_gpt.py
    sumpter run -n 2 -s 1 -- python examples/tiny_gpt.py

It reads and writes characters; after a minute it knows what a line of Python looks like.
"""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
from rich.progress import Progress
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it
from torch.nn.parallel import DistributedDataParallel

import sumpter

STEPS = 600
BATCH = 32  # over all workers
CONTEXT = 64
WIDTH = 96
HEADS = 4
LAYERS = 2
CHARACTERS = 128  # ASCII
SEED = 1


class Block(nn.Module):
    """One transformer layer: attention to what came before, then a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.query_key_value(self.before_attention(x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.network(x)


class TinyGPT(nn.Module):
    """Predicts each next character of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.predict = nn.Linear(WIDTH, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        position = torch.arange(text.shape[1])
        return self.predict(self.layers(self.characters(text) + self.positions(position)))


def load_text() -> torch.Tensor:
    """The standard library's modules as one long row of characters."""
    sources = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in sources)
    return torch.frombuffer(bytearray(text.encode("ascii", "ignore")), dtype=torch.uint8).long()


@torch.no_grad()
def write(model: TinyGPT, prompt: str, length: int) -> str:
    """Continues `prompt` character by character."""
    text = torch.tensor([list(prompt.encode("ascii"))])
    for _ in range(length):
        logits = model(text[:, -CONTEXT:])[:, -1] / 0.7
        text = torch.cat([text, torch.multinomial(logits.softmax(-1), 1)], 1)
    return bytes(text[0].tolist()).decode("ascii")


def main() -> int:
    distributed = "RANK" in os.environ  # set by torchrun and by `sumpter run`
    if distributed:
        dist.init_process_group("sumpter")
    rank = dist.get_rank() if distributed else 0
    world_size = dist.get_world_size() if distributed else 1

    torch.manual_seed(SEED)
    text = load_text()
    model = TinyGPT()
    trained = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS)

    losses = []
    window = torch.arange(CONTEXT + 1)
    chooser = torch.Generator().manual_seed(SEED)
    with Progress(disable=rank != 0) as progress:
        bar = progress.add_task("training", total=STEPS)
        for _ in range(STEPS):
            starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=chooser)
            sample = text[starts[rank::world_size] + window]
            logits = trained(sample[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), sample[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            sumpter.record_samples(len(sample))
            progress.update(bar, advance=1, description=f"loss {losses[-1]:.2f}")
    if distributed:
        dist.destroy_process_group()
    if rank != 0:
        return 0
    first, last = sum(losses[:20]) / 20, sum(losses[-20:]) / 20
    print(f"loss per character: {first:.2f} at first, {last:.2f} at last")
    print(write(model, "def read(self, ", 400), flush=True)
    return 0 if last < 0.7 * first else 1


if __name__ == "__main__":
    sys.exit(main())
