"""DistributedOptimizer: a module for each way in which ranks combine their steps."""

from sumpter.torch.optimizer.distributed import DistributedOptimizer, wrap_on_servers

__all__ = ["DistributedOptimizer", "wrap_on_servers"]
