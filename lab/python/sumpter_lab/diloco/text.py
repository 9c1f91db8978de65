"""What is trained: a small GPT that predicts the next character of Python's standard library."""

from __future__ import annotations

import os
import pathlib

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

CONTEXT = 64
WIDTH = 96
HEADS = 4
LAYERS = 2
CHARACTERS = 128  # ASCII
# Of the text, held out for the loss.
HELD_OUT = 0.1
# Windows that the loss is the mean of.
WINDOWS = 64


class _Block(nn.Module):
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


class Model(nn.Module):
    """Logits of each next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(_Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.predict = nn.Linear(WIDTH, CHARACTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        position = torch.arange(text.shape[1])
        return self.predict(self.layers(self.characters(text) + self.positions(position)))


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """The mean loss per character of windows of one more character than the context, in nats."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


class Text:
    """The modules of the standard library as one row of characters, the last part held out."""

    def __init__(self) -> None:
        sources = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
        text = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in sources)
        row = torch.frombuffer(bytearray(text.encode("ascii", "ignore")), dtype=torch.uint8)
        kept = int(len(row) * (1 - HELD_OUT))
        self._trained = row[:kept].long()
        self.trained = _evenly(self._trained, 4 * WINDOWS)
        self.held_out = _evenly(row[kept:].long(), WINDOWS)

    def batch(self, size: int, chooser: torch.Generator) -> torch.Tensor:
        """Windows from anywhere in the text."""
        starts = torch.randint(len(self._trained) - CONTEXT, (size, 1), generator=chooser)
        return self._trained[starts + torch.arange(CONTEXT + 1)]


def _evenly(text: torch.Tensor, windows: int) -> torch.Tensor:
    """Windows at equal distances."""
    starts = torch.linspace(0, len(text) - CONTEXT - 1, windows).long().unsqueeze(1)
    return text[starts + torch.arange(CONTEXT + 1)]
