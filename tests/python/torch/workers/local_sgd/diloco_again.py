"""DiLoCo goes on from its state, in the same job and in another, to the bytes of one run."""

from __future__ import annotations

import copy
from typing import Any

import torch
from local_training import adam, nesterov, new_model, train, values
from torch import nn

import sumpter.torch as hvd
from common import RANK, raises, same


def check_restart(on_servers: bool, dtype: torch.dtype = torch.float32) -> None:
    """A job that goes on from a state ends with the bytes of one that was not stopped."""

    def made(state: dict[str, Any] | None) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = new_model(dtype)
        inner, outer = adam(model), nesterov(model)
        diloco = hvd.DiLoCo(model, inner, outer, 5, 3, 3, 0.5, on_servers=on_servers)
        if state is not None:
            model.load_state_dict(state["model"])
            # What torch loads, it trains on in the same memory.
            diloco.load_state_dict(copy.deepcopy(state["diloco"]))
        return model, inner, diloco

    model, inner, diloco = made(None)
    with diloco:
        for step in range(20):
            train(model, inner, step)
    undisturbed = list(diloco.global_parameters().values())
    model, inner, diloco = made(None)
    with diloco:
        # Two fragments are in flight, or their results are not due.
        for step in range(9):
            train(model, inner, step)
        state = copy.deepcopy({"model": model.state_dict(), "diloco": diloco.state_dict()})
        for step in range(9, 20):
            train(model, inner, step)
        theta = list(diloco.global_parameters().values())
        expected = values(model) + theta
    for one, other in zip(theta, undisturbed, strict=True):
        same(one, other)
    # Back in the same job.
    with diloco:
        model.load_state_dict(state["model"])
        diloco.load_state_dict(copy.deepcopy(state["diloco"]))
        for step in range(9, 20):
            train(model, inner, step)
        again = values(model) + list(diloco.global_parameters().values())
    for one, other in zip(again, expected, strict=True):
        same(one, other)
    hvd.shutdown()
    hvd.init()
    model, inner, diloco = made(state)
    with diloco:
        for step in range(9, 20):
            train(model, inner, step)
        again = values(model) + list(diloco.global_parameters().values())
    for one, other in zip(again, expected, strict=True):
        same(one, other)
    saved = diloco.state_dict()
    assert saved["rounds"] == 4
    # Intervals that are others than before, and than each other.
    model = new_model(dtype)
    inner = adam(model)
    diloco = hvd.DiLoCo(model, inner, nesterov(model), 4 + RANK, 3, 3, 0.5, on_servers=on_servers)
    model.load_state_dict(state["model"])
    diloco.load_state_dict(copy.deepcopy(state["diloco"]))
    with diloco:
        step = 0
        while diloco.rounds < 4:
            train(model, inner, step)
            step += 1
    for value in diloco.global_parameters().values():
        for one in hvd.allgather(value.flatten().float().unsqueeze(0)):
            same(one, value.flatten().float())
    if on_servers:
        assert "momentum_buffer" in saved["outer"]["state"][0]
        hvd.shutdown()
        hvd.init()
        with raises(ValueError, "job that is over", "load_state_dict"):
            diloco.state_dict()
        with raises(ValueError, "of 3 fragments, and there are 1"):
            hvd.DiLoCo(model, inner, nesterov(model), 5).load_state_dict(saved)
        with raises(ValueError, "other parameters"):
            small = nn.Linear(1, 1)
            hvd.DiLoCo(small, adam(small), nesterov(small), 5).load_state_dict(saved)


hvd.init()
for on_servers in (True, False):
    check_restart(on_servers)
    hvd.shutdown()
    hvd.init()
check_restart(on_servers=True, dtype=torch.bfloat16)
hvd.shutdown()
hvd.init()
hvd.shutdown()
