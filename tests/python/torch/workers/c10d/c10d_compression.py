"""torch.distributed by a codec: by the setting, by pg_options, and by a hook of DDP."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sumpter
from common import ALL, RANK, join_torch, raises
from sumpter._core import membership
from sumpter.torch import GroupOptions, compression_hook

CODEC = sys.argv[1]
COUNT = 5000


def given(rank: int, count: int = COUNT) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def error(group: dist.ProcessGroup | None, count: int = COUNT) -> float:
    own = given(RANK, count)
    # More often than there are tensors that take turns.
    for _ in range(6):
        result = own.clone()
        dist.all_reduce(result, group=group)
    total = sum(given(rank, count) for rank in ALL)
    return float((result - total).abs().max())


def check_setting() -> None:
    assert 1e-4 < error(None) < 0.1
    assert error(None, 1000) < 1e-5
    whole = torch.arange(COUNT)
    dist.all_reduce(whole)
    assert torch.equal(whole, 2 * torch.arange(COUNT))
    most = given(RANK)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert torch.equal(most, torch.stack([given(rank) for rank in ALL]).amax(0))


def check_options() -> None:
    plain = dist.new_group(list(ALL), pg_options=GroupOptions(compression="off"))
    assert error(plain) < 1e-5
    coarse = dist.new_group(list(ALL), pg_options=GroupOptions("onebit", 0))
    assert error(coarse, 100) > 0.2
    with raises(sumpter.ConfigError, "no name"):
        options = GroupOptions("topk:k=0.1,momentum=0.9")
        dist.new_group(list(ALL), pg_options=options)
    holders = set(membership._holders)
    for refused, said in (("zip", "no codec is called 'zip'"), ("powersgd:rank=4", "powersgd")):
        with raises(sumpter.ConfigError, said):
            dist.new_group(list(ALL), pg_options=GroupOptions(refused))
    # What was refused does not keep the job open.
    assert set(membership._holders) == holders


def train(hook: object) -> list[torch.Tensor]:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    if hook is not None:
        model.register_comm_hook(None, hook)
    for step in range(12):
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + RANK))
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def check_hook() -> None:
    with raises(sumpter.ConfigError, "takes a codec"):
        compression_hook("none")
    hooked = train(compression_hook("topk:k=0.5"))
    plain_group = dist.new_group(list(ALL), pg_options=GroupOptions(compression="off"))
    for parameter in hooked:
        other = parameter.clone()
        dist.all_reduce(other, op=dist.ReduceOp.MAX, group=plain_group)
        assert torch.equal(other, parameter), "ranks differ"
    by_setting = train(None)
    for one, other in zip(hooked, by_setting, strict=True):
        assert (one - other).norm() < 0.05 * other.norm()


join_torch()
check_setting()
check_options()
check_hook()
dist.destroy_process_group()
