"""LocalSGD averages parameters, over all ranks or over some."""

from __future__ import annotations

import torch
from local_training import adam, near, new_model, train, values
from torch import nn

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises, same


def check_average() -> None:
    here, there = new_model(), new_model()
    if RANK != 0:
        nn.init.zeros_(here[0].weight)
    inner, other = adam(here), adam(there)
    with hvd.LocalSGD(here, inner, sync_every=3) as local_sgd:
        for step in range(1, 10):
            train(here, inner, step)
            train(there, other, step)
            if step % 3 == 0:
                for index, parameter in enumerate(there.parameters()):
                    parameter.data = hvd.allreduce(parameter.data, name=f"by hand.{index}")
            near(values(here), values(there), atol=1e-6)
        assert local_sgd.rounds == 3
    train(here, inner, 10)
    train(here, inner, 11)
    train(here, inner, 12)
    assert local_sgd.rounds == 3, "outside the context nothing is averaged"


def check_intervals() -> None:
    """Averages meet by number, and sync() begins an interval."""
    model = new_model()
    inner = adam(model)
    sync_every = 2 + RANK
    with hvd.LocalSGD(model, inner, sync_every) as local_sgd:
        train(model, inner, 0)
        local_sgd.sync()
        step = 1
        while local_sgd.rounds < 4:
            train(model, inner, step)
            step += 1
    assert step == 1 + 3 * sync_every
    for value in values(model):
        for one in hvd.allgather(value.flatten().unsqueeze(0)):
            same(one, value.flatten())


def check_restart() -> None:
    """The counters and the optimizer go on from the state, and the ranks' own parameters stay."""
    model = new_model()
    inner = adam(model)
    with hvd.LocalSGD(model, inner, 4) as local_sgd:
        for step in range(6):
            train(model, inner, step)
        saved, before = local_sgd.state_dict(), values(model)
    again = new_model()
    other = adam(again)
    resumed = hvd.LocalSGD(again, other, 4)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(saved)
    with resumed:
        for value, expected in zip(values(again), before, strict=True):
            same(value, expected)
        train(again, other, 6)
        train(again, other, 7)
    assert resumed.rounds == 2


hvd.init()
check_average()
check_intervals()
check_restart()
model = new_model()
inner = adam(model)
with raises(ValueError, "sync_every is 0"):
    hvd.LocalSGD(model, inner, 0)
if WORLD_SIZE > 2:
    some = hvd.add_process_set([0, 2])
    if some.included():
        with hvd.LocalSGD(model, inner, 2, process_set=some):
            train(model, inner, 0)
            train(model, inner, 1)
        for value in values(model):
            for one in hvd.allgather(value.flatten().unsqueeze(0), process_set=some):
                same(one, value.flatten())
    else:
        with raises(ValueError, "outside", "as site"):
            hvd.LocalSGD(model, inner, 2, process_set=some)
# Parameters of other types, and some that are not contiguous.
model = nn.Linear(3, 5).to(torch.float64)
model.weight.data = model.weight.data.t().contiguous().t()
inner = torch.optim.SGD(model.parameters(), lr=1.0)
with hvd.LocalSGD(model, inner, 1):
    model.weight.grad = torch.full((5, 3), float(RANK), dtype=torch.float64)
    start = model.weight.detach().clone()
    inner.step()
    torch.testing.assert_close(model.weight.detach(), start - (WORLD_SIZE - 1) / 2)
hvd.shutdown()
