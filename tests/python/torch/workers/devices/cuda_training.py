"""DDP and DistributedOptimizer on a GPU that all ranks share, against the same run on the CPU."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as hvd
from common import RANK, join_torch

STEPS = 4


def model_on(device: str) -> torch.nn.Module:
    torch.manual_seed(7)
    layers = [torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)]
    return torch.nn.Sequential(*layers).double().to(device)


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: str
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(RANK)
    for _ in range(STEPS):
        batch = torch.randn(16, 64, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        model(batch.to(device)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def with_ddp(device: str, overlap: bool) -> list[torch.Tensor]:
    options = {"gradient_as_bucket_view": True, "bucket_cap_mb": 1} if overlap else {}
    model = DistributedDataParallel(model_on(device), **options)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), device)


def with_optimizer(device: str) -> list[torch.Tensor]:
    model = model_on(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return train(model, wrapped, device)


def close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12), (one - other).abs().max()


if __name__ == "__main__":
    torch.cuda.set_device(0)
    join_torch()
    hvd.init()
    for overlap in (False, True):
        close(with_ddp("cuda", overlap), with_ddp("cpu", overlap))
    close(with_optimizer("cuda"), with_optimizer("cpu"))
    dist.destroy_process_group()
    hvd.shutdown()
