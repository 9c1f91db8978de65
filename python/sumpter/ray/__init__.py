"""Sumpter as a backend of Ray Train, with spare CPU nodes that carry the summation.

    from ray.train.torch import TorchTrainer
    from sumpter.ray import SumpterConfig

    TorchTrainer(train, torch_config=SumpterConfig(helpers=2), scaling_config=...).fit()

Helpers are servers (`sumpter serve`) as actors of Ray. One that dies is started again, and joins
the job while it runs. Their nodes need no torch, so nothing here is imported before it is used.
"""

from typing import TYPE_CHECKING

from sumpter._packages import need

if TYPE_CHECKING:
    from sumpter.ray.config import SumpterConfig

__all__ = ["SumpterConfig"]


def __getattr__(name: str) -> object:
    if name != "SumpterConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need("ray", "sumpter.ray")
    need("torch", "sumpter.ray")
    from sumpter.ray.versions import check

    check()
    from sumpter.ray import config

    return config.SumpterConfig
