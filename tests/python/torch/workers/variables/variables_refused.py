"""What changes parameters, rules or optimizers so that a result would be wrong is an error."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import sumpter.torch as hvd
from common import RANK, WORLD_SIZE, raises, same


def new_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(64, 32).to(dtype)


def sgd(model: nn.Module, **given: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.01, "momentum": 0.9, **given})


def on_servers(model: nn.Module, optimizer: torch.optim.Optimizer, **given: Any) -> Any:
    named = model.named_parameters()
    return hvd.DistributedOptimizer(optimizer, named, **{"on_servers": True, **given})


def backward(model: nn.Module, number: int) -> None:
    generator = torch.Generator().manual_seed(10 * number + RANK)
    x = torch.randn(4, 64, generator=generator).to(model.weight.dtype)
    model(x).square().sum().backward()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    backward(model, number)
    optimizer.step()


def check_rules() -> None:
    """Hyper-parameters that need other slots are refused, or come with a state that has them."""
    for deferred in (False, True):
        model = new_model()
        optimizer = on_servers(model, sgd(model, momentum=0), deferred=deferred)
        step(model, optimizer, 0)
        optimizer.param_groups[0]["momentum"] = 0.9
        with raises(ValueError, "need the rule sgd_momentum", "is that of sgd"):
            step(model, optimizer, 1)
        optimizer.param_groups[0]["momentum"] = 0
        step(model, optimizer, 2)
    here, there = new_model(), new_model()
    ours, other = on_servers(here, sgd(here)), on_servers(there, sgd(there, momentum=0))
    step(here, ours, 0)
    step(there, other, 1)
    saved = ours.state_dict()
    there.load_state_dict(here.state_dict())
    other.load_state_dict(saved)
    for number in range(2, 5):
        step(here, ours, number)
        step(there, other, number)
        same(here.weight.detach(), there.weight.detach())


def check_states() -> None:
    """States of 16-bit parameters lose nothing, and SGD's is none before its first step."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        model = new_model(dtype)
        optimizer = on_servers(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        for number in range(3):
            step(model, optimizer, number)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        ends = []
        for _ in range(2):
            for number in range(3, 6):
                step(model, optimizer, number)
            ends.append((model.weight.detach().clone(), optimizer.state_dict()["state"][0]))
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        same(ends[0][0], ends[1][0])
        assert ("master_value" in ends[0][1]) == (dtype != torch.float32)
        for key, value in ends[0][1].items():
            same(value, ends[1][1][key])
    # Parameters that are others than those of the state count more than its master copy.
    model = new_model(torch.bfloat16)
    optimizer = on_servers(model, sgd(model, lr=0.0))
    step(model, optimizer, 0)
    saved = optimizer.state_dict()
    nn.init.ones_(model.weight)
    optimizer.load_state_dict(saved)
    step(model, optimizer, 1)
    same(model.weight.detach(), torch.ones(32, 64, dtype=torch.bfloat16))
    given = {"dampening": 0.5}
    here, there = new_model(), new_model()
    ours, theirs = on_servers(here, sgd(here, **given)), sgd(there, **given)
    ours.load_state_dict(ours.state_dict())
    backward(here, 0)
    ours.synchronize()
    ours.load_state_dict({**ours.state_dict(), "state": {}})
    there.load_state_dict(here.state_dict())
    theirs.load_state_dict(ours.state_dict())
    theirs = hvd.DistributedOptimizer(theirs, there.named_parameters())
    step(here, ours, 1)
    step(there, theirs, 1)
    same(here.weight.detach(), there.weight.detach())


def check_moments() -> None:
    """Between backward() and step() there is no state to save, and none is loaded."""
    model = new_model()
    optimizer = on_servers(model, sgd(model))
    step(model, optimizer, 0)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    backward(model, 1)
    with raises(AssertionError, "state_dict() was called after backward()"):
        optimizer.state_dict()
    with raises(AssertionError, "load_state_dict() was called after backward()"):
        optimizer.load_state_dict(saved[1])
    optimizer.step()
    # What was deferred has changed nothing, and its end overwrites nothing that was loaded.
    optimizer = on_servers(model, sgd(model), deferred=True)
    for number in range(10):
        backward(model, number)
        assert optimizer.state_dict()["state"].keys() == {0, 1}
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        hvd.barrier()
        same(model.weight.detach(), saved[0]["weight"])
        step(model, optimizer, number)
    # Hyper-parameters that cannot be: no rank waits for a decision, and the next step is one.
    before = model.weight.detach().clone()
    optimizer.param_groups[0]["lr"] = float("inf")
    with raises(ValueError, "not finite"):
        step(model, optimizer, 0)
    same(model.weight.detach(), before)
    optimizer.param_groups[0]["lr"] = 0.01
    step(model, optimizer, 0)
    assert not torch.equal(model.weight, before)


def check_memory() -> None:
    """A parameter is what it was when the servers got it, in the same memory."""

    def replace(model: nn.Module) -> None:
        model.bias.data = torch.zeros(32)

    changes: list[tuple[Callable[[nn.Module], object], str]] = [
        (replace, "bias was changed in the worker"),
        (lambda model: model.double(), " is float64 [32"),
        (lambda model: model.half(), "and was a contiguous float32 [32"),
    ]
    for change, words in changes:
        for given in ({}, {"deferred": True}):
            model = new_model()
            optimizer = on_servers(model, sgd(model), **given)
            step(model, optimizer, 0)
            saved = optimizer.state_dict()
            optimizer.zero_grad()
            change(model)
            with raises(ValueError, words):
                backward(model, 1)
            if change is not replace:
                with raises(ValueError, words, "cannot be that of these parameters"):
                    optimizer.load_state_dict(saved)
                continue
            optimizer.load_state_dict(saved)
            step(model, optimizer, 1)


def check_optimizers() -> None:
    """Optimizers that have no copy, and such that DiLoCo and LocalSGD do not take."""
    model = new_model()
    for given in ({"on_servers": True}, {}, {"staleness": 1}, {"op": hvd.Adasum}):
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **given)
        for duplicate in (copy.deepcopy, copy.copy, pickle.dumps):
            with raises(TypeError, "cannot be copied or pickled", "state_dict()"):
                duplicate(optimizer)
        if given:
            with raises(hvd.UnsupportedError, "the inner optimizer"):
                hvd.LocalSGD(model, optimizer, 2)
    inner = sgd(model)
    with raises(ValueError, "the outer optimizer is the inner one"):
        hvd.DiLoCo(model, inner, inner, 2)
    for staleness in (True, 1.5, "2", -1):
        with raises(ValueError, f"staleness={staleness}"):
            hvd.DistributedOptimizer(inner, model.named_parameters(), staleness=staleness)
    model.bias.requires_grad_(False)
    shared = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), staleness=1)
    step(model, shared, 0)
    model.bias.requires_grad_(True)
    with raises(ValueError, "shape [32] in group 0 was frozen"):
        step(model, shared, 1)
    shared.synchronize()


def check_other_states() -> None:
    """The state of another optimizer, or a part of one."""
    model = new_model()
    optimizer = on_servers(model, sgd(model))
    adam = torch.optim.Adam(model.parameters())
    before = dict(optimizer.param_groups[0])
    with raises(ValueError, "'momentum' is none of its optimizer's hyper-parameters"):
        optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0] == before
    step(model, optimizer, 0)
    model = new_model()
    optimizer = on_servers(model, torch.optim.Adam(model.parameters()))
    step(model, optimizer, 0)
    saved = optimizer.state_dict()
    before = dict(optimizer.param_groups[0])
    del saved["state"][1]["exp_avg_sq"]
    saved["param_groups"][0]["lr"] = 7.0
    with raises(ValueError, "that of bias has exp_avg, and adam has"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0] == before
    step(model, optimizer, 1)
    assert optimizer.state_dict()["state"][1]["step"] == 2


class Lost:
    """Of a round that has failed before its norm has come."""

    def __init__(self, decision: Any) -> None:
        self.decide = decision.decide

    def squares(self) -> float:
        raise hvd.MismatchError("a rank skips the round")


def clip_after_failure(optimizer: Any) -> None:
    """One rank does not get as far as the others, and decides about none of its rounds."""
    if RANK == 0:
        undecided = optimizer._exchange._undecided
        parameter = optimizer.param_groups[0]["params"][1]
        decision, gradient = undecided[parameter]
        undecided[parameter] = (Lost(decision), gradient)
    optimizer.clip_grad_norm_(1e-3)


def check_ranks() -> None:
    """Ranks with other rules, or other decisions, all get an error; the others go on."""
    going_on = new_model()
    others = on_servers(going_on, sgd(going_on))
    step(going_on, others, 0)
    model = new_model()
    kind = torch.optim.SGD if RANK else torch.optim.Adam
    with raises(hvd.MismatchError, "Variable.", "sgd", "adam"):
        optimizer = on_servers(model, kind(model.parameters(), lr=0.1))
        step(model, optimizer, 0)
    step(going_on, others, 1)
    decisions: list[tuple[Callable[[Any], object], str]] = [
        (lambda optimizer: optimizer.clip_grad_norm_(1e-3 * (1 + RANK)), "scale is"),
        (clip_after_failure, "skips the round"),
        (lambda optimizer: setattr(optimizer, "found_inf", torch.tensor(RANK)), "skips the round"),
    ]
    for decide, words in decisions:
        model = new_model()
        optimizer = on_servers(model, sgd(model), deferred=True)
        step(model, optimizer, 0)
        # The error takes the tensor, with rounds that another rank still waits for.
        hvd.barrier()
        backward(model, 1)
        # Two that differ fail the round, perhaps while this rank still asks for its norm.
        with raises(hvd.MismatchError, words):
            decide(optimizer)
            optimizer.step()
        step(going_on, others, 2)
    # A state of other shapes, on all ranks and on one.
    for some in (range(WORLD_SIZE), [1]):
        model = new_model()
        optimizer = on_servers(model, sgd(model))
        step(model, optimizer, 0)
        saved = copy.deepcopy(optimizer.state_dict())
        if RANK in some:
            saved["state"][0]["momentum_buffer"] = torch.ones(3)
        with raises(ValueError, "rank 1: momentum_buffer of weight has the shape [3]"):
            optimizer.load_state_dict(saved)
        # The servers have what they had.
        step(model, optimizer, 1)
        for one in hvd.allgather(model.weight.detach().unsqueeze(0)):
            same(one, model.weight.detach())
        step(going_on, others, 3)


hvd.init()
check_rules()
check_states()
check_moments()
check_memory()
check_optimizers()
check_other_states()
if WORLD_SIZE > 1:
    check_ranks()
hvd.barrier()
hvd.shutdown()
