"""Sumpter as a backend of Ray Train, with spare CPU nodes that carry the summation.

    from ray.train.torch import TorchTrainer
    from sumpter.ray import SumpterConfig

    TorchTrainer(train, torch_config=SumpterConfig(helpers=2), scaling_config=...).fit()

Helpers are servers (`sumpter serve`) as actors of Ray. One that dies is started again, and joins
the job while it runs.
"""

# ruff: noqa: E402
from sumpter._packages import need

need("ray", "sumpter.ray")
need("torch", "sumpter.ray")

from sumpter.ray.versions import check

check()

from sumpter.ray.config import SumpterConfig

__all__ = ["SumpterConfig"]
