"""DistributedOptimizer: its semantics, and that ranks which differ at first end alike."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same

# Divisible by the numbers of ranks that are tested, so that the average of means is the mean.
DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(7))


def make_model(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def backward(model: nn.Module, data: torch.Tensor = DATA) -> None:
    model(data[RANK::WORLD_SIZE]).pow(2).mean().backward()


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def expected_gradients(passes: int = 1) -> torch.Tensor:
    model = make_model()
    for _ in range(passes):
        model(DATA).pow(2).mean().backward()
    return gradients(model)


def check_equal_on_all_ranks(model: nn.Module) -> None:
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    for other in hvd.allgather(own.unsqueeze(0)):
        same(other, own)


# Every optimizer of torch but LBFGS; each with the options that change what its state holds.
OPTIMIZERS: dict[str, tuple[dict[str, object], ...]] = {
    "SGD": ({"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "fused": True}),
    "Adam": ({"amsgrad": True}, {"fused": True}, {"foreach": True}, {"lr": torch.tensor(0.02)}),
    "AdamW": ({}, {"foreach": False}),
    "NAdam": ({},),
    "RAdam": ({"decoupled_weight_decay": True},),
    "Adamax": ({},),
    "Adagrad": ({"initial_accumulator_value": 0.1},),
    "Adadelta": ({},),
    "RMSprop": ({"centered": True, "momentum": 0.1},),
    "Rprop": ({},),
    "ASGD": ({},),
    "Adafactor": ({},),
    "Muon": ({},),
    "SparseAdam": ({},),
}


def make_model_for(kind: str) -> nn.Module:
    if kind == "SparseAdam":
        return nn.Sequential(nn.Embedding(6, 4, sparse=True))
    if kind == "Muon":
        return nn.Sequential(nn.Linear(4, 3, bias=False))
    return make_model(seed=RANK)


def loss_of(model: nn.Module) -> torch.Tensor:
    if isinstance(model[0], nn.Embedding):
        return model(torch.tensor([RANK, 5])).sin().sum()
    return model(DATA[RANK::WORLD_SIZE]).pow(2).mean()


def check_every_optimizer() -> None:
    known = {name for name in torch.optim.__all__ if name[0].isupper()}
    others = known - set(OPTIMIZERS) - {"LBFGS", "Optimizer"}
    assert not others, f"check these optimizers too: {others}"
    for name, variants in OPTIMIZERS.items():
        # An older torch does not have the newest ones.
        for options in variants if name in known else ():
            check_optimizer(name, options)


def check_optimizer(name: str, options: dict[str, object]) -> None:
    torch.manual_seed(RANK)
    model = make_model_for(name)
    kind = getattr(torch.optim, name)
    # Ranks differ in options and in how many steps they have taken; rank 1 has taken none.
    given = {"lr": 0.01 * (RANK + 1)} | (options if RANK != 1 else {})
    optimizer = kind(model.parameters(), **given)
    for _ in range((2, 0, 3)[RANK]):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict())
    hvd.broadcast_optimizer_state(optimizer, 0)
    own = optimizer.state_dict()
    for other in hvd.allgather_object(own):
        assert str(other) == str(own), (name, options)
    assert len(own["state"]) == len(list(model.parameters()))
    wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    assert isinstance(wrapped, kind)
    schedule = torch.optim.lr_scheduler.StepLR(wrapped, step_size=1, gamma=0.5)
    before = float(wrapped.param_groups[0]["lr"])
    for _ in range(3):
        wrapped.zero_grad()
        loss_of(model).backward()
        wrapped.step()
        schedule.step()
    assert abs(float(wrapped.param_groups[0]["lr"]) - before / 8) < 1e-9
    check_equal_on_all_ranks(model)


def check_closure() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=4))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(DATA[RANK::WORLD_SIZE]).pow(2).mean()
        loss.backward()
        # LBFGS decides by the loss how often to call this, so ranks must see the same one.
        return hvd.allreduce(loss.detach())

    before = hvd.allreduce(model(DATA[RANK::WORLD_SIZE]).pow(2).mean().detach())
    optimizer.step(closure)
    assert closure() < before
    optimizer.synchronize()
    check_equal_on_all_ranks(model)


def check_accumulation() -> None:
    """Gradients of several passes add up and are not divided by their number."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        backward_passes_per_step=2,
    )
    backward(model)
    backward(model)
    optimizer.synchronize()
    torch.testing.assert_close(gradients(model), expected_gradients(passes=2))
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    backward(model)
    with raises(AssertionError, "more than 1 times"):
        backward(model)
    optimizer.step()
    hvd.barrier()


def check_counting() -> None:
    """load_state_dict() counts passes from the start, and gradients wait for all of them."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        hvd.Compression.none,
        2,
    )
    backward(model)
    optimizer.load_state_dict(optimizer.state_dict())
    backward(model)
    # Nothing is under way after one pass.
    optimizer.zero_grad()
    backward(model)
    with raises(AssertionError, "zero_grad()"):
        optimizer.zero_grad()
    optimizer.step()
    torch.testing.assert_close(gradients(model), expected_gradients())
    # A step that comes early exchanges what there is.
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in model.parameters())
    for _ in range(2):
        backward(model)
    optimizer.step()


def check_misuse() -> None:
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with raises(ValueError, "duplicate", "same"):
        hvd.DistributedOptimizer(sgd, [("same", p) for p in model.parameters()])
    with raises(ValueError, "lacks 3"):
        hvd.DistributedOptimizer(sgd, list(model.named_parameters())[:1])
    with raises(ValueError, "pairs"):
        hvd.DistributedOptimizer(sgd, list(model.parameters()))
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    backward(model)
    with raises(AssertionError, "zero_grad()"):
        optimizer.zero_grad(set_to_none=False)
    optimizer.synchronize()
    optimizer.zero_grad(set_to_none=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
        optimizer.synchronize()
        optimizer.step()
    assert len(caught) == 1 and "skip_synchronize" in str(caught[0].message)


def check_steps_after_synchronize() -> None:
    """Only the next step goes without an exchange, and only if backward has made nothing since."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    backward(model)
    optimizer.synchronize()
    backward(model)
    optimizer.step()
    torch.testing.assert_close(gradients(model), expected_gradients(passes=2))
    # As a GradScaler does that has found what is not finite: it takes no step.
    optimizer.synchronize()
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    torch.testing.assert_close(gradients(model), expected_gradients())
    # Nor does a synchronize() count for what is loaded after it.
    optimizer.synchronize()
    optimizer.load_state_dict(optimizer.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(RANK))
    optimizer.step()
    same(gradients(model), torch.full_like(gradients(model), sum(ALL) / WORLD_SIZE))


def check_closure_that_synchronizes() -> None:
    """What is summed in the closure is not summed again after it."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), op=hvd.Sum
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(DATA[RANK::WORLD_SIZE]).pow(2).mean()
        loss.backward()
        optimizer.synchronize()
        return loss

    for _ in range(2):
        with optimizer.skip_synchronize():
            optimizer.step(closure)
        torch.testing.assert_close(gradients(model), WORLD_SIZE * expected_gradients())
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    torch.testing.assert_close(gradients(model), WORLD_SIZE * expected_gradients())


def check_unreached_parameters() -> None:
    """A parameter that only some ranks use, or none, is exchanged all the same."""
    model = nn.ModuleList([nn.Linear(2, 1, bias=False) for _ in range(WORLD_SIZE + 1)])
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    model[RANK](torch.ones(2)).backward()
    optimizer.step()
    for layer in ALL:
        weight = model[layer].weight.detach()
        torch.testing.assert_close(weight, torch.full((1, 2), 1.0 - 1.0 / WORLD_SIZE))
    same(model[WORLD_SIZE].weight.detach(), torch.ones(1, 2))


def check_variants() -> None:
    for options in (
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 4.0},
        {"op": hvd.Average, "num_groups": 2},
        {"groups": 2},
    ):
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), **options)
        backward(model)
        optimizer.synchronize()
        # Half precision has 11 bits: 5e-4 of each of the few addends.
        torch.testing.assert_close(gradients(model), expected_gradients(), rtol=2e-3, atol=1e-4)
    embedding = nn.Embedding(4, 2, sparse=True)
    sgd = torch.optim.SGD(embedding.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, sparse_as_dense=True)
    embedding(torch.tensor([RANK % 4])).sum().backward()
    optimizer.synchronize()
    total = sum(nn.functional.one_hot(torch.tensor(rank % 4), 4) for rank in ALL)
    assert embedding.weight.grad.is_sparse
    same(embedding.weight.grad.to_dense(), (total / WORLD_SIZE).unsqueeze(1).expand(4, 2))
    frozen = make_model()
    frozen[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(frozen.parameters(), lr=0.1))
    backward(frozen)
    optimizer.step()
    assert frozen[0].weight.grad is None


hvd.init()
check_every_optimizer()
check_closure()
check_accumulation()
check_counting()
check_misuse()
check_steps_after_synchronize()
check_closure_that_synchronizes()
check_unreached_parameters()
check_variants()
hvd.shutdown()
