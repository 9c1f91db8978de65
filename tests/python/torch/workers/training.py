"""Trains one model in four ways and compares each with one process on the whole batch.

The ways: torch.distributed collectives by hand, DistributedDataParallel, DistributedOptimizer and
push_pull on NumPy arrays. Leaves the bytes of all final parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sumpter
import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, join_torch, leave_result

STEPS = 6
BATCH = 16

# Adding in another order changes a float32 gradient by a few units in the last place (6e-8 of
# its largest addend). Six steps at this learning rate carry that into the parameters, which are
# around 0.1, without amplifying it a hundredfold: 1e-5 is far above what order can do and far
# below what one lost or doubled contribution does (1e-2 and more).
TOLERANCE = 1e-5

Train = Callable[[nn.Module, torch.optim.Optimizer, Callable[[], None]], None]


def make_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 64), nn.Tanh(),
        nn.Linear(64, 10),
    )  # fmt: skip


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(6)
    return [
        (
            torch.randn(BATCH, 1, 8, 8, generator=generator),
            torch.randint(10, (BATCH,), generator=generator),
        )
        for _ in range(STEPS)
    ]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    share: slice,
    before_step: Callable[[], None] = lambda: None,
) -> None:
    for images, labels in make_batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[share]), labels[share]).backward()
        before_step()
        optimizer.step()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def by_hand(model: nn.Module, share: slice) -> None:
    def average() -> None:
        works = [
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, async_op=True) for p in model.parameters()
        ]
        for work in works:
            work.wait()

    train(model, make_optimizer(model), share, average)


def by_ddp(model: nn.Module, share: slice) -> None:
    # Several buckets, one smaller and one larger than a partition.
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02)
    train(wrapped, make_optimizer(model), share)


def by_optimizer(model: nn.Module, share: slice) -> None:
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
    train(model, optimizer, share)


def by_numpy(model: nn.Module, share: slice) -> None:
    def average() -> None:
        for name, parameter in model.named_parameters():
            averaged = sumpter.push_pull(parameter.grad.numpy(), name=name)
            parameter.grad.copy_(torch.from_numpy(averaged))

    train(model, make_optimizer(model), share, average)


def flatten(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    join_torch()
    start = make_model()
    reference = copy.deepcopy(start)
    train(reference, make_optimizer(reference), slice(None))
    expected = flatten(reference)
    assert (expected - flatten(start)).abs().max() > 1e-2, "the model must have learned something"

    share = slice(RANK, None, WORLD_SIZE)
    content = b""
    for way in (by_hand, by_ddp, by_optimizer, by_numpy):
        model = copy.deepcopy(start)
        way(model, share)
        actual = flatten(model)
        error = (actual - expected).abs().max().item()
        assert error <= TOLERANCE, f"{way.__name__}: differs by {error}"
        content += actual.numpy().tobytes()
    leave_result(content)
    dist.destroy_process_group()


main()
