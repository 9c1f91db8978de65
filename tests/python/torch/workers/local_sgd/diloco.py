"""DiLoCo against its algorithm, done by hand on the averages of all ranks."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from local_training import adam, near, nesterov, new_model, train, values
from torch import nn

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises, same


class ByHand:
    """Algorithm 2 of Streaming DiLoCo, with an all-reduce and an optimizer in each rank."""

    def __init__(self, model: nn.Module, parts: list[list[int]], alpha: float) -> None:
        self.model, self.parts, self.alpha = model, parts, alpha
        self.theta = [nn.Parameter(value) for value in values(model)]
        self.outer = torch.optim.SGD(self.theta, lr=0.7, momentum=0.9, nesterov=True)

    def send(self, part: int) -> None:
        now = values(self.model)
        for index in self.parts[part]:
            moved = self.theta[index].detach() - now[index]
            self.theta[index].grad = hvd.allreduce(moved, name=f"by hand.{index}")
        self.outer.step()
        self.outer.zero_grad()

    def use(self, part: int) -> None:
        parameters = list(self.model.parameters())
        for index in self.parts[part]:
            local, theta = parameters[index].detach(), self.theta[index].detach()
            local.copy_((1 - self.alpha) * theta + self.alpha * local)


def check_one_step_is_synchronous_training() -> None:
    """H = 1 and a plain outer step of length 1: only where additions round differs."""
    here, there = new_model(), new_model()
    inner = torch.optim.SGD(here.parameters(), lr=0.1)
    outer = torch.optim.SGD(here.parameters(), lr=1.0)
    sgd = torch.optim.SGD(there.parameters(), lr=0.1)
    theirs = hvd.DistributedOptimizer(sgd, there.named_parameters())
    with hvd.DiLoCo(here, inner, outer, sync_every=1):
        for step in range(20):
            train(here, inner, step)
            train(there, theirs, step)
    near(values(here), values(there), atol=2e-6)


def check_direction(on_servers: bool) -> None:
    """All ranks move their parameter to 3, so a pseudo-gradient is -2, and half a step gives 2."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = torch.optim.SGD(model.parameters(), lr=0.5)
    with hvd.DiLoCo(model, inner, outer, sync_every=2, on_servers=on_servers) as diloco:
        for _ in range(2):
            model.weight.grad = torch.full((1, 1), -1.0)
            inner.step()
            assert model.weight.grad.item() == -1.0, "the gradient is the inner optimizer's"
        assert model.weight.item() == 2.0, model.weight
        assert diloco.rounds == 1


def check_fragments(delay: int, alpha: float, sync_every: int, on_servers: bool) -> None:
    """Fragments in flight, merged when due, against the algorithm by hand."""
    here, there = new_model(), new_model()
    inner, other = adam(here), adam(there)
    parts = [[0, 1], [2, 3], [4, 5]]
    turns = {-(-sync_every * (index + 1) // 3) % sync_every: index for index in range(3)}
    assert len(turns) == 3
    by_hand = ByHand(there, parts, alpha)
    due: dict[int, list[int]] = {}
    # As modules, which are what the indices above are of.
    fragments = [here[0], here[2], here[3]]
    with hvd.DiLoCo(
        here, inner, nesterov(here), sync_every, fragments, delay, alpha, on_servers=on_servers
    ) as diloco:
        for step in range(1, 4 * sync_every + 1):
            train(here, inner, step)
            train(there, other, step)
            part = turns.get(step % sync_every)
            if part is not None:
                by_hand.send(part)
                due.setdefault(step + delay, []).append(part)
            for part in due.pop(step, []):
                by_hand.use(part)
            near(values(here), values(there), atol=1e-5)
    assert diloco.rounds == 4
    for part in (part for parts in due.values() for part in parts):
        by_hand.use(part)
    near(values(here), values(there), atol=1e-5)
    theta = diloco.global_parameters()
    assert list(theta) == [name for name, _ in here.named_parameters()]
    near(list(theta.values()), [one.detach() for one in by_hand.theta], atol=1e-5)
    for value in theta.values():
        for one in hvd.allgather(value.flatten().unsqueeze(0)):
            same(one, value.flatten())


def check_intervals() -> None:
    """Ranks with other intervals and delays: rounds meet by number, all have the same result."""
    model = new_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    sync_every = (5, 2, 1, 3)[RANK]
    delay = (3, 1, 0, 0)[RANK]
    with hvd.DiLoCo(
        model, inner, nesterov(model), sync_every, fragments=3, fragment_sync_delay=delay
    ) as diloco:
        step = 0
        while diloco.rounds < 6:
            train(model, inner, step)
            step += 1
    assert step == 6 * sync_every
    for value in diloco.global_parameters().values():
        for one in hvd.allgather(value.flatten().unsqueeze(0)):
            same(one, value.flatten())


def check_different_rounds() -> None:
    """A state is that of one round on all ranks, or an error on all."""
    model = new_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    with hvd.DiLoCo(model, inner, nesterov(model), 3, 3, 2) as diloco:
        for step in range(3):
            train(model, inner, step)
        if RANK == 0:
            train(model, inner, 3)
        if WORLD_SIZE > 1:
            with raises(ValueError, "different outer rounds", "(1, 1)", "(1, 0)"):
                diloco.state_dict()
        if RANK != 0:
            train(model, inner, 3)
        assert diloco.state_dict()["rounds"] == 1


def check_frozen() -> None:
    """A frozen parameter stays as it is and is no part of a round; buffers are each rank's."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    with torch.no_grad():
        model[0].weight.fill_(RANK + 1.0)
        model[1].running_mean.fill_(RANK + 1.0)
    trained = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.SGD(trained, lr=0.1)
    with hvd.DiLoCo(model, inner, torch.optim.SGD(trained, lr=0.7), 2, 2) as diloco:
        assert model[0].weight[0, 0].item() == 1.0, "as on rank 0"
        assert model[1].running_mean[0].item() == 1.0, "as on rank 0"
        for step in range(4):
            inner.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + RANK)
            model(torch.randn(8, 4, generator=generator) + RANK).square().mean().backward()
            inner.step()
        assert "0.weight" not in diloco.global_parameters()
        same(model[0].weight.detach(), torch.ones(4, 4))
        means = hvd.allgather(model[1].running_mean.unsqueeze(0))
        assert WORLD_SIZE == 1 or not torch.equal(means[0], means[1]), "not averaged"
        model[0].weight.requires_grad_(True)
        with raises(ValueError, "0.weight", "was frozen"):
            for _ in range(2):
                inner.step()


def check_schedule() -> None:
    """The learning rate of the outer optimizer travels with each round."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(outer, 0.5)
    # As of a step before the optimizer's.
    warnings.simplefilter("error")
    with hvd.DiLoCo(model, inner, outer, sync_every=1):
        for expected in (1.0, 1.5, 1.75):
            model.weight.grad = torch.full((1, 1), -1.0)
            inner.step()
            scheduler.step()
            assert model.weight.item() == expected


def check_half() -> None:
    """16-bit parameters have a master copy of float32 on the servers."""
    model = new_model(torch.bfloat16)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    with hvd.DiLoCo(model, inner, nesterov(model), 2, 2, 1, 0.25) as diloco:
        for step in range(8):
            train(model, inner, step)
    for value in diloco.global_parameters().values():
        assert value.dtype == torch.bfloat16
        for one in hvd.allgather(value.float().flatten().unsqueeze(0)):
            same(one, value.float().flatten())


def check_refusals() -> None:
    model = new_model()
    inner = adam(model)

    def refused(kind: type[Exception], *parts: str, **given: Any) -> None:
        arguments = {"outer_optimizer": nesterov(model), "sync_every": 4, **given}
        with raises(kind, *parts):
            hvd.DiLoCo(model, inner, **arguments)

    refused(ValueError, "sync_every is 0", "from 1", sync_every=0)
    refused(ValueError, "sync_every is 2.5", sync_every=2.5)
    refused(ValueError, "fragment_sync_delay is 4", "below", fragment_sync_delay=4)
    refused(ValueError, "fragment_sync_delay is -1", fragment_sync_delay=-1)
    refused(ValueError, "fragment_update_alpha is 1.5", "0..1", fragment_update_alpha=1.5)
    refused(ValueError, "fragments is 0", "1..6", fragments=0)
    refused(ValueError, "fragments is 7", fragments=7)
    refused(ValueError, "0.weight is in the fragments 0 and 1", fragments=[model, model[0]])
    refused(ValueError, "in no fragment", "2.weight", fragments=[model[0], model[3]])
    refused(ValueError, "no parameter that is trained", fragments=[model, model[1]])
    refused(ValueError, "not the model's", fragments=[model, nn.Linear(1, 1)])
    refused(ValueError, "has a str", fragments=["0"])
    refused(hvd.UnsupportedError, "LBFGS", outer_optimizer=torch.optim.LBFGS(model.parameters()))
    less = torch.optim.SGD(model[0].parameters(), lr=1.0)
    refused(ValueError, "lacks 4", "2.weight", outer_optimizer=less)
    more = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=1.0)
    refused(ValueError, "1 of the outer optimizer's", outer_optimizer=more)
    refused(ValueError, "site is a int", site=3)
    with raises(ValueError, "no parameter that is trained"):
        hvd.DiLoCo(nn.ReLU(), inner, nesterov(model), 2)
    other = new_model()
    on_servers = hvd.DistributedOptimizer(adam(other), other.named_parameters(), on_servers=True)
    with raises(hvd.UnsupportedError, "without on_servers"):
        hvd.DiLoCo(other, on_servers, nesterov(other), 2)
    with hvd.DiLoCo(model, inner, nesterov(model), 2) as diloco:
        with raises(ValueError, "entered already"), diloco:
            pass
    if WORLD_SIZE == 1:
        return
    some = hvd.add_process_set([0])
    if RANK != 0:
        refused(ValueError, "outside", "as site", process_set=some)
    # What ranks must do alike, and do not.
    order = [model[0], model[2], model[3]]
    if RANK == 1:
        order.reverse()
    diloco = hvd.DiLoCo(model, inner, nesterov(model), 6, order)
    with raises(hvd.MismatchError, "DiLoCo(3 fragments"), diloco:
        pass
    model = nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = torch.optim.SGD(model.parameters(), lr=0.5 + 0.1 * RANK)
    model(torch.ones(1, 2)).sum().backward()
    with raises(hvd.MismatchError, "weight"), hvd.DiLoCo(model, inner, outer, 1):
        inner.step()


hvd.init()
check_one_step_is_synchronous_training()
for on_servers in (True, False):
    check_direction(on_servers)
    check_fragments(delay=0, alpha=0.0, sync_every=6, on_servers=on_servers)
    # The result of one is used after the next was sent, and the next but one: three in flight.
    check_fragments(delay=5, alpha=0.0, sync_every=6, on_servers=on_servers)
    check_fragments(delay=2, alpha=0.25, sync_every=4, on_servers=on_servers)
    check_fragments(delay=1, alpha=1.0, sync_every=7, on_servers=on_servers)
check_intervals()
check_different_rounds()
check_frozen()
check_schedule()
check_half()
check_refusals()
# A rank that leaves would be the reason of whatever fails on the others.
hvd.barrier()
hvd.shutdown()
