"""DistributedOptimizer with codecs: ranks stay equal and losses are near those without."""

from __future__ import annotations

import copy

import torch

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises
from sumpter.torch import Compression

STEPS = 30


def make_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Tanh(), torch.nn.Linear(48, 32))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + RANK)
    inputs = torch.randn(16, 32, generator=generator)
    return inputs, torch.roll(inputs, 3, 1).tanh()


def take(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    inputs, wanted = batch(step)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), wanted).backward()
    optimizer.step()


def loss_of(model: torch.nn.Module) -> float:
    with torch.no_grad():
        inputs, wanted = batch(0)
        return float(hvd.allreduce(torch.nn.functional.mse_loss(model(inputs), wanted)))


def train(compression: object, **options: object) -> tuple[float, torch.nn.Module]:
    model = make_model()
    base = torch.optim.SGD(model.parameters(), 0.5)
    optimizer = hvd.DistributedOptimizer(
        base, model.named_parameters(), compression=compression, **options
    )
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    for step in range(STEPS):
        take(model, optimizer, step)
        decay.step()
    if options:
        optimizer.synchronize()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    mean = hvd.allreduce(flat.double(), name=None, compression="off")
    assert torch.equal(mean, flat.double()), f"{compression}: ranks differ"
    return loss_of(model), model


def check_losses() -> None:
    start, plain = loss_of(make_model()), train("off")[0]
    assert plain < 0.7 * start
    for compression in (
        *(Compression.bf16, "int8", "fp8", Compression.dithering(bits=8), Compression.powersgd),
    ):
        loss, _ = train(compression)
        assert abs(loss - plain) < 0.15 * (start - plain), (compression, loss, plain, start)
    # What these leave out comes steps later.
    onebit = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
    for compression in (Compression.topk(k=0.25), onebit):
        loss, _ = train(compression)
        assert loss < start - 0.5 * (start - plain), (compression, loss, plain, start)
    loss, _ = train("int8", overlap_forward=True)
    assert abs(loss - plain) < 0.05 * (start - plain)


def check_rates() -> None:
    """What was left out at a high rate comes at that rate, although the rate has fallen."""
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], 1.0), [("r", weight)], compression="topk:k=0.25,two_way=false"
    )
    gradient = torch.randn(64, 64, generator=torch.Generator().manual_seed(9))
    wanted = torch.zeros(64, 64)
    for step in range(20):
        optimizer.param_groups[0]["lr"] = rate = 1.0 if step < 6 else 0.05
        optimizer.zero_grad()
        (weight * gradient).sum().backward()
        optimizer.step()
        wanted -= rate * gradient
    # Left out at the high rate were about as much as the largest of a few gradients.
    error = (weight.detach() - wanted).abs().max()
    assert error < 0.5, error


def check_exact_factors() -> None:
    """A gradient of low rank is its factors' product, and nothing is left of it."""
    weight = torch.nn.Parameter(torch.zeros(40, 24))
    base = torch.optim.SGD([weight], 1.0)
    codec = Compression.powersgd(rank=2)
    optimizer = hvd.DistributedOptimizer(base, [("w", weight)], compression=codec)
    generator = torch.Generator().manual_seed(5)
    left, right = torch.randn(40, 1, generator=generator), torch.randn(1, 24, generator=generator)
    for step in range(3):
        optimizer.zero_grad()
        (weight * ((RANK + 1.0) * left @ right)).sum().backward()
        optimizer.step()
        mean = (WORLD_SIZE + 1) / 2
        wanted = -(step + 1) * mean * left @ right
        assert torch.allclose(weight.detach(), wanted, atol=1e-4), step
    kept = optimizer.state_dict()["compression"]["w"]
    assert kept["rounds"] == 3 and kept["rank"] == RANK
    assert kept["residual"].abs().max() < 1e-4


def check_start() -> None:
    """The first rounds are exact, also after a checkpoint in the middle of them."""

    def build() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        weight = torch.nn.Parameter(torch.zeros(40, 24))
        base = torch.optim.SGD([weight], 1.0)
        codec = Compression.powersgd(rank=2, start=2)
        named = [("s", weight)]
        return weight, hvd.DistributedOptimizer(base, named, compression=codec)

    def error_of(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> float:
        """By how much a step misses the mean of all gradients, a matrix of full rank."""
        torch.nn.init.zeros_(weight)
        optimizer.zero_grad()
        (weight * (RANK + 1.0) * whole).sum().backward()
        optimizer.step()
        return float((weight.detach() + whole * (WORLD_SIZE + 1) / 2).abs().max())

    whole = torch.randn(40, 24, generator=torch.Generator().manual_seed(7))
    weight, optimizer = build()
    assert error_of(weight, optimizer) < 1e-5
    kept = optimizer.state_dict()
    assert kept["compression"]["s"]["rounds"] == 1
    weight, optimizer = build()
    optimizer.load_state_dict(kept)
    errors = [error_of(weight, optimizer) for _ in range(3)]
    assert errors[0] < 1e-5 < 0.5 < min(errors[1:]), errors


def check_state() -> None:
    """A loaded state goes on as the one that was kept does."""

    def build(rank: int = 1) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = make_model()
        base = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        codec = Compression.powersgd(rank=rank)
        named = model.named_parameters()
        return model, hvd.DistributedOptimizer(base, named, compression=codec)

    model, optimizer = build()
    for step in range(3):
        take(model, optimizer, step)
    kept, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    take(model, optimizer, 3)
    again, resumed = build()
    again.load_state_dict(weights)
    resumed.load_state_dict(kept)
    take(again, resumed, 3)
    # In tensors of their own, which may be summed elsewhere and in another order.
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    before = resumed.state_dict()["compression"]["0.weight"]["residual"].clone()
    hvd.broadcast_optimizer_state(resumed, root_rank=0)
    after = resumed.state_dict()["compression"]["0.weight"]
    assert torch.equal(after["residual"], before) and after["rank"] == RANK
    take(again, resumed, 4)
    # Factors of another rank begin anew, and what was left out is taken along.
    wider, refined = build(rank=2)
    wider.load_state_dict(weights)
    refined.load_state_dict(kept)
    residual = kept["compression"]["0.weight"]["residual"]
    assert torch.equal(refined.state_dict()["compression"]["0.weight"]["residual"], residual)
    take(wider, refined, 5)
    kept["compression"]["0.weight"]["residual"] = torch.zeros(3)
    with raises(hvd.ConfigError, "its residual has 3 elements"):
        refined.load_state_dict(kept)
    kept["compression"]["0.weight"]["residual"] = residual
    # The plain optimizer takes such a state, too.
    plain = torch.optim.SGD(make_model().parameters(), 0.1, momentum=0.9)
    plain.load_state_dict(kept)


# Each gradient is sent by a quarter of its elements; the rest comes in later rounds.
FEEDBACK = "topk:k=0.25,two_way=false"


def make_weight(name: str) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    return weight, wrap(weight, name)


def wrap(weight: torch.nn.Parameter, name: str) -> torch.optim.Optimizer:
    base = torch.optim.SGD([weight], 1.0)
    return hvd.DistributedOptimizer(base, [(name, weight)], compression=FEEDBACK)


def step(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, seed: int) -> torch.Tensor:
    """Takes a step along a gradient, the same on all ranks, and returns it."""
    gradient = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    (weight * gradient).sum().backward()
    optimizer.step()
    return gradient


def check_models_alike() -> None:
    """Each of several models with equal names has its own of what the codec leaves out."""
    ended = []
    for names in (("one", "two", "three"), ("w", "w", "w")):
        models = [make_weight(name) for name in names]
        for _ in range(3):
            for seed, (weight, optimizer) in enumerate(models):
                step(weight, optimizer, seed)
        ended.append([weight.detach() for weight, _ in models])
    for one, other in zip(*ended, strict=True):
        torch.testing.assert_close(one, other)
    # One that comes after others begins with nothing left out.
    weight, optimizer = make_weight("w")
    gradient = step(weight, optimizer, 4)
    moved = weight.detach() != 0
    assert int(moved.sum()) == 64 * 64 // 4
    torch.testing.assert_close(weight.detach()[moved], -gradient[moved], rtol=1e-2, atol=0)


def check_a_model_wrapped_again() -> None:
    """It goes on with what the codec has left out."""
    weight, optimizer = make_weight("again")
    step(weight, optimizer, 1)
    for _ in range(2):
        again = wrap(weight, "again")
    again.zero_grad()
    (weight * torch.zeros(64, 64)).sum().backward()
    again.step()
    assert int((weight != 0).sum()) == 64 * 64 // 2


def check_a_weight_that_is_added() -> None:
    """What is left out of its gradient is kept as well, and of the others' still."""
    weight, optimizer = make_weight("first")
    step(weight, optimizer, 1)
    later = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer.add_param_group({"params": [later]})
    step(later, optimizer, 2)
    assert int((later != 0).sum()) == 64 * 64 // 4
    assert int((weight != 0).sum()) == 64 * 64 // 2
    kept = optimizer.state_dict()["compression"]
    assert list(kept) == ["first", "1"] and kept["1"]["residual"].any()


def check_the_state_of_a_weight_that_is_frozen() -> None:
    """It waits until the weight is trained again."""

    def build(is_frozen: bool) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        weights = [torch.nn.Parameter(torch.zeros(64, 64)) for _ in range(2)]
        weights[1].requires_grad_(not is_frozen)
        base = torch.optim.SGD(weights, 1.0)
        named = list(zip(("stays", "waits"), weights, strict=True))
        return weights[1], hvd.DistributedOptimizer(base, named, compression=FEEDBACK)

    weight, optimizer = build(is_frozen=False)
    step(weight, optimizer, 1)
    kept = optimizer.state_dict()
    weight, optimizer = build(is_frozen=True)
    optimizer.load_state_dict(kept)
    assert optimizer.state_dict()["compression"].keys() == {"stays", "waits"}
    weight.requires_grad_()
    (weight * torch.zeros(64, 64)).sum().backward()
    optimizer.step()
    # A quarter more of the gradient of the step before.
    assert int((weight != 0).sum()) == 64 * 64 // 4


def check_not_finite() -> None:
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    base = torch.optim.SGD([weight], 1.0)
    codec = Compression.powersgd(rank=2)
    optimizer = hvd.DistributedOptimizer(base, [("n", weight)], compression=codec)
    factor = torch.ones(64, 64)
    factor[0, 0] = float("nan")
    for wanted in (factor, torch.ones(64, 64)):
        optimizer.zero_grad()
        (weight * wanted).sum().backward()
        optimizer.step()
        assert weight.isnan().any() == wanted.isnan().any()
        torch.nn.init.zeros_(weight)


hvd.init()
check_losses()
check_rates()
check_exact_factors()
check_start()
check_state()
check_models_alike()
check_a_model_wrapped_again()
check_a_weight_that_is_added()
check_the_state_of_a_weight_that_is_frozen()
check_not_finite()
hvd.shutdown()
