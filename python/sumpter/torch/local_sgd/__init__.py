"""Training with few exchanges: LocalSGD averages parameters, DiLoCo has an outer optimizer."""

from sumpter.torch.local_sgd.average import LocalSGD
from sumpter.torch.local_sgd.diloco import DiLoCo

__all__ = ["DiLoCo", "LocalSGD"]
