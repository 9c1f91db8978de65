"""The models that are trained, and their data: digits of scikit-learn, the text of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from sumpter_lab.diloco.text import Model, Text, loss_of


class Task(Protocol):
    """A model with its data."""

    def make_model(self) -> nn.Module:
        """A new model, of torch's random numbers."""
        ...

    def batch_loss(self, model: nn.Module, batch: int, share: slice, draw: torch.Generator):
        """The loss of a rank's share of the batch that comes next from `draw`."""
        ...

    def losses(self, model: nn.Module) -> tuple[float, float]:
        """Of what was trained on, all of it or an even choice, and of what was held out."""
        ...


class Digits:
    """A small convolutional network for handwritten digits, as examples/digits.py has it."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
        labels = torch.tensor(digits.target)
        held_out = torch.arange(len(labels)) % 5 == 0
        self._trained = (images[~held_out], labels[~held_out])
        self._held_out = (images[held_out], labels[held_out])
        self._order = torch.empty(0, dtype=torch.long)

    def make_model(self) -> nn.Module:
        self._order = torch.empty(0, dtype=torch.long)
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

    def batch_loss(
        self, model: nn.Module, batch: int, share: slice, draw: torch.Generator
    ) -> torch.Tensor:
        images, labels = self._trained
        if len(self._order) < batch:
            # The next epoch; what is left of the last one is less than a batch.
            self._order = torch.randperm(len(labels), generator=draw)
        chosen, self._order = self._order[:batch][share], self._order[batch:]
        return F.cross_entropy(model(images[chosen]), labels[chosen])

    @torch.no_grad()
    def losses(self, model: nn.Module) -> tuple[float, float]:
        both = (self._trained, self._held_out)
        trained, held_out = (F.cross_entropy(model(x), y).item() for x, y in both)
        return trained, held_out


class Characters:
    """A small GPT that predicts the next character of Python's standard library."""

    def __init__(self) -> None:
        self._text = Text()

    def make_model(self) -> nn.Module:
        return Model()

    def batch_loss(
        self, model: nn.Module, batch: int, share: slice, draw: torch.Generator
    ) -> torch.Tensor:
        return loss_of(model, self._text.batch(batch, draw)[share])

    @torch.no_grad()
    def losses(self, model: nn.Module) -> tuple[float, float]:
        trained, held_out = self._text.trained, self._text.held_out
        return loss_of(model, trained).item(), loss_of(model, held_out).item()


TASKS: dict[str, Callable[[], Task]] = {"digits": Digits, "gpt": Characters}
