"""BytePS' DistributedDataParallel, against one process that has the whole batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sumpter.torch as bps
from common import ALL, RANK, WORLD_SIZE, raises, same
from sumpter.torch.parallel import DistributedDataParallel

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(7))


def make_model(seed: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def own(data: torch.Tensor) -> torch.Tensor:
    return data[RANK::WORLD_SIZE]


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def check_training() -> None:
    """Ranks that start differently train like one process; any optimizer will do."""
    for seen in ("plain", "dictionary", "checkpoint"):
        ours = DistributedDataParallel(make_model(seed=RANK), device_ids=[0])
        whole = make_model(seed=0)
        assert list(ours.state_dict()) == [f"module.{name}" for name in whole.state_dict()]
        steps = [torch.optim.Adam(m.parameters(), lr=0.05) for m in (ours, whole)]
        if seen == "dictionary":
            inner = ours.module
            ours.module = Named(inner)
        for _ in range(3):
            output = ours(own(DATA)) if seen != "checkpoint" else through_checkpoint(ours)
            output = output["result"] if seen == "dictionary" else output
            for step, loss in zip(
                steps, (output.pow(2).mean(), whole(DATA).pow(2).mean()), strict=True
            ):
                step.zero_grad()
                loss.backward()
            near(gradients(ours), gradients(whole))
            for step in steps:
                step.step()


class Named(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, data: torch.Tensor) -> dict[str, object]:
        return {"result": self.inner(data), "rank": RANK}


class InTwoParts(nn.Module):
    """Runs backward within backward, once for each part."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.inner[:2], data.requires_grad_(), use_reentrant=True)
        return checkpoint(self.inner[2], hidden, use_reentrant=True)


def through_checkpoint(ours: DistributedDataParallel) -> torch.Tensor:
    if not isinstance(ours.module, InTwoParts):
        ours.module = InTwoParts(ours.module)
    return ours(own(DATA).clone())


def check_overlap() -> None:
    """When backward reaches the input, the gradients of all parameters are under way."""
    ours = DistributedDataParallel(make_model())
    seen = []
    data = own(DATA).clone().requires_grad_()
    data.register_hook(lambda _: seen.append(ours._exchange.pending))
    ours(data).sum().backward()
    assert seen == [True] and not ours._exchange.pending


def check_no_sync() -> None:
    ours, whole = DistributedDataParallel(make_model()), make_model()
    halves = DATA[:12], DATA[12:]
    for half in halves:
        whole(half).pow(2).mean().backward()
    with ours.no_sync():
        ours(own(halves[0])).pow(2).mean().backward()
    alone = make_model()
    alone(own(halves[0])).pow(2).mean().backward()
    near(gradients(ours), gradients(alone))
    ours(own(halves[1])).pow(2).mean().backward()
    near(gradients(ours), gradients(whole))
    ours.synchronize()
    near(gradients(ours), gradients(whole))
    # Instead of a last backward pass outside, an explicit call.
    ours.zero_grad()
    with ours.no_sync():
        for half in halves:
            ours(own(half)).pow(2).mean().backward()
    ours.synchronize()
    near(gradients(ours), gradients(whole))


def check_unreached_parameters() -> None:
    layers = nn.ModuleList([nn.Linear(2, 1, bias=False) for _ in range(WORLD_SIZE + 1)])
    ours = DistributedDataParallel(Choosing(layers))
    for _ in range(2):
        ours.zero_grad()
        ours(torch.ones(2)).backward()
        for layer in layers[:-1]:
            near(layer.weight.grad, torch.full((1, 2), 1.0 / WORLD_SIZE))
        same(layers[-1].weight.grad, torch.zeros(1, 2))


class Choosing(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.layers[RANK](data)


def check_buffers() -> None:
    for follows in (True, False):
        ours = DistributedDataParallel(nn.BatchNorm1d(2), None, follows)
        ours(torch.full((3, 2), RANK + 1.0))
        own_mean = torch.full((2,), 0.1 * (RANK + 1))
        near(ours.module.running_mean, own_mean)
        ours.eval()
        with torch.no_grad():
            ours(torch.ones(1, 2))
        near(ours.module.running_mean, torch.full((2,), 0.1) if follows else own_mean)


def check_compression() -> None:
    ours = DistributedDataParallel(make_model(), compression=bps.Compression.fp16)
    whole = make_model()
    ours(own(DATA)).pow(2).mean().backward()
    whole(DATA).pow(2).mean().backward()
    near(gradients(ours), gradients(whole), 2e-3)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, data):
        return data.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("on purpose")


def check_misuse() -> None:
    ours = DistributedDataParallel(make_model())
    with raises(ValueError, "DistributedDataParallel", "DistributedOptimizer"):
        bps.DistributedOptimizer(torch.optim.SGD(ours.parameters(), 0.1))
    with raises(ValueError, "device_ids"):
        DistributedDataParallel(make_model(), [0, 1])
    # A backward pass that failed on one rank only: the next one is in step again.
    hidden = ours.module[:2](own(DATA))
    output = ours.module[2](Failing.apply(hidden) if RANK == 0 else hidden)
    ours._exchange.expect(output, True)
    if RANK == 0:
        with raises(ArithmeticError, "on purpose"):
            output.sum().backward()
    else:
        output.sum().backward()
    whole = make_model()
    whole(DATA).pow(2).mean().backward()
    output = ours(own(DATA))
    ours.zero_grad()
    output.pow(2).mean().backward()
    near(gradients(ours), gradients(whole))


def check_group_of_push_pulls() -> None:
    bps.byteps_torch_set_num_grads(3)
    tensors = [torch.full((size,), RANK + 1.0) for size in (1, 2, 3, 4, 5, 6)]
    started = [
        bps.push_pull_group_sync_inplace(tensor, average=False, name=f"gradient.{i}")
        for i, tensor in enumerate(tensors)
    ]
    assert [count for _, count in started] == [1, 2, 3, 1, 2, 3]
    for (handle, _), tensor in zip(started, tensors, strict=True):
        assert bps.synchronize(handle) is tensor
        same(tensor, torch.full(tensor.shape, float(sum(rank + 1 for rank in ALL))))


def check_speed() -> None:
    bps.get_pushpull_speed()
    for _ in range(3):
        bps.push_pull_inplace(torch.ones(100_000), name="large")
    when, speed = bps.get_pushpull_speed()
    assert isinstance(when, int) and when > 1.7e12
    # Alone, nothing is sent anywhere.
    assert speed > 0 or WORLD_SIZE == 1
    later, idle = bps.get_pushpull_speed()
    assert later >= when and idle == 0.0


bps.init()
check_training()
check_overlap()
check_no_sync()
check_unreached_parameters()
check_buffers()
check_compression()
check_misuse()
check_group_of_push_pulls()
check_speed()
bps.shutdown()
