"""A model for tests on a GPU whose gradients have the same bits as on the CPU."""

from __future__ import annotations

import torch
from torch import nn

from common import RANK

# Several slices, the last of them smaller; a few elements; one.
SIZES = ((3 << 20) + 5, 1000, 1)


class Weighted(nn.Module):
    """Its output is the sum of its parameters, each element times a factor: the gradients."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        values = [torch.randn(size, generator=generator).to(dtype) for size in SIZES]
        self.values = nn.ParameterList(values)

    def forward(self, factors: list[torch.Tensor]) -> torch.Tensor:
        parts = [(p * factor).float().sum() for p, factor in zip(self.values, factors, strict=True)]
        return torch.stack(parts).sum()


def factors(
    step: int, device: str, dtype: torch.dtype = torch.float32, rank: int = RANK
) -> list[torch.Tensor]:
    """Factors of one step, which on a GPU are made after a long kernel."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    found = [torch.randn(size, generator=generator).to(dtype) for size in SIZES]
    if device == "cpu":
        return found
    found = [factor.to(device) for factor in found]
    torch.cuda._sleep(20_000_000)
    return [factor.clone() for factor in found]


def on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().cpu() for tensor in tensors]
