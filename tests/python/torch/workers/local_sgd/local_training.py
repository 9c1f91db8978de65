"""What the workers that test local SGD train."""

from __future__ import annotations

import torch
from torch import nn

from common import RANK


def new_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 20), nn.Linear(20, 3)).to(
        dtype
    )


def batch(step: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    x, y = torch.randn(8, 12, generator=generator), torch.randn(8, 3, generator=generator)
    return x.to(dtype), y.to(dtype)


def train(model: nn.Module, inner: torch.optim.Optimizer, step: int) -> None:
    inner.zero_grad()
    x, y = batch(step, next(model.parameters()).dtype)
    nn.functional.mse_loss(model(x), y).backward()
    inner.step()


def values(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def near(actual: list[torch.Tensor], expected: list[torch.Tensor], atol: float = 1e-6) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


def nesterov(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)
