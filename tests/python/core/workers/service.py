"""sumpter.service on every rank: variables, rules, and errors that all ranks get."""

from __future__ import annotations

import numpy as np
import torch

import sumpter
from common import RANK, WORLD_SIZE, raises, same
from sumpter import service

ELEMENTS = 3000  # several partitions
RULES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, object]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99)}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}


def gradients(step: int) -> list[np.ndarray]:
    """Those of all ranks; sums of whole numbers are exact in any order."""
    generator = np.random.default_rng(step)
    return [generator.integers(-8, 9, ELEMENTS).astype(np.float32) for _ in range(WORLD_SIZE)]


class OnDevice:
    """An array in the memory of a GPU."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("the device is looked at first")


hub = service.connect()
assert (hub.rank, hub.size) == (RANK, WORLD_SIZE)
start = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)

for name, (kind, given) in RULES.items():
    parameter = torch.from_numpy(start.copy())
    optimizer = kind([parameter], foreach=False, **given)
    # The value is rank 0's.
    mine = start if RANK == 0 else np.zeros_like(start)
    variable = hub.init_variable(name, mine, name, average=False, **given)
    assert np.array_equal(hub.pull(name), start)
    for step in range(12):
        if step == 6:
            hub.set_hyperparameters(name, lr=0.05)
            optimizer.param_groups[0]["lr"] = 0.05
        everyone = gradients(step)
        parameter.grad = torch.from_numpy(np.sum(everyone, axis=0, dtype=np.float32))
        optimizer.step()
        handle = hub.push(variable, everyone[RANK])
        value = handle.synchronize()
        assert np.array_equal(value, hub.pull(name))
        np.testing.assert_allclose(value, parameter.numpy(), rtol=1e-5, atol=1e-6)
    # The state goes elsewhere, as if it had never stopped.
    state = hub.state(name)
    assert state["step"] == 12
    assert np.array_equal(state["value"], hub.pull(name))
    other = f"{name} again"
    changed = {**given, "lr": 0.05}
    hub.init_variable(other, hub.pull(name), name, average=False, state=state, **changed)
    for step in range(12, 15):
        for which in (name, other):
            hub.push(which, gradients(step)[RANK])
    assert np.array_equal(hub.pull(name), hub.pull(other))

# Averages by default; 16 bits have a float32 value; any DLPack array, and several rounds in flight.
weights = torch.ones(64, dtype=torch.float16)
variable = hub.init_variable("half", weights, "sgd", lr=2.0**-12)
rounds = [hub.push(variable, torch.full((64,), 1.0 + RANK, dtype=torch.float16)) for _ in range(3)]
mean = sum(range(1, WORLD_SIZE + 1)) / WORLD_SIZE
wide = torch.ones(64)
for one in rounds:
    wide -= mean * 2.0**-12
    same(one.synchronize(), wide.half())
same(hub.pull("half"), wide.half())
assert np.array_equal(hub.state("half")["value"], wide.numpy())

# Plain sums, also of integers.
hub.init_variable("counts", np.arange(3))
assert hub.pull("counts").tolist() == [0, 1, 2]
assert hub.push_pull("counts", np.arange(3) + RANK).tolist() == [
    WORLD_SIZE * i + sum(range(WORLD_SIZE)) for i in range(3)
]

# What ranks do differently fails on all of them, and on no other variable.
shape = (4,) if RANK == 0 else (5,)
with raises(sumpter.MismatchError, "init_variable('w', float32 [4]", "float32 [5]"):
    hub.init_variable("w", np.ones(shape, np.float32), "sgd", lr=0.1)
with raises(sumpter.MismatchError, "lr=0.1", "lr=0.2"):
    hub.init_variable("w", np.ones(4, np.float32), "sgd", lr=0.1 if RANK == 0 else 0.2)
with raises(sumpter.MismatchError, "adam", "lion"):
    hub.init_variable("w", np.ones(4, np.float32), "adam" if RANK == 0 else "lion")
if RANK == 0:
    with raises(sumpter.MismatchError, "'service.early.0", "has used it before init_variable()"):
        hub.init_variable("early", np.ones(4, np.float32), "sgd", lr=0.1)
else:
    for _ in range(2):
        with raises(service.VariableError, "'early' has no value", f"rank {RANK}"):
            hub.pull("early")
hub.init_variable("early", np.ones(4, np.float32), "sgd", lr=0.1)
assert hub.pull("early").tolist() == [1.0] * 4
with raises(service.VariableError, "call init_variable()"):
    hub.push("never", np.ones(4, np.float32))
if RANK == 1:
    with raises(sumpter.UnsupportedError, "on device"):
        hub.init_variable("device", OnDevice())
else:
    with raises(sumpter.MismatchError, "'service.device.0", "rank 1: the array is on device"):
        hub.init_variable("device", np.ones(2))
hub.init_variable("device", np.ones(2))

ones = np.ones(4, np.float32)
wrong = {
    "shape": np.ones((2, 2), np.float32),
    "dtype": np.ones(4),
    "integers": np.ones(4, np.int32),
    "complex": np.ones(4, np.complex64),
}
for name, gradient in wrong.items():
    # Twice: a variable that has failed is begun anew.
    for _ in range(2):
        hub.init_variable(name, ones, "adam")
        assert hub.push_pull(name, ones).shape == (4,)
        # Gathered from all ranks, so all have the round's value: a variable that fails while a
        # rank still waits for it fails that round as well.
        assert hub.state(name)["step"] == 1
        with raises(sumpter.MismatchError, name, f"rank 1 has pushed {gradient.dtype.name}"):
            hub.push_pull(name, gradient if RANK == 1 else ones)
        with raises(sumpter.MismatchError, f"rank 1 has pushed {gradient.dtype.name}"):
            hub.pull(name)
hub.init_variable("gpu", ones, "adam")
if RANK == 1:
    with raises(sumpter.UnsupportedError, "on device"):
        hub.push("gpu", OnDevice())
else:
    with raises(sumpter.MismatchError, "gpu", "rank 1: the array is on device"):
        hub.push_pull("gpu", ones)
hub.init_variable("rates", ones, "sgd", lr=0.1)
hub.set_hyperparameters("rates", lr=0.1 + RANK)
with raises(sumpter.MismatchError, "rates", "step is"):
    hub.push_pull("rates", ones)

# What no rank can do.
with raises(sumpter.UnsupportedError, "int64", "no update rule"):
    hub.init_variable("w", np.arange(4), "adam")
with raises(sumpter.UnsupportedError, "int64", "no average"):
    hub.init_variable("w", np.arange(4), average=True)
with raises(sumpter.UnsupportedError, "complex64"):
    hub.init_variable("w", np.ones(4, np.complex64))
with raises(sumpter.ConfigError, "no update rule 'newton'", "adagrad"):
    hub.init_variable("w", ones, "newton")
with raises(sumpter.ConfigError, "no hyper-parameter 'momentum'", "betas"):
    hub.init_variable("w", ones, "adam", momentum=0.9)
with raises(sumpter.ConfigError, "rule 'sgd'", "'lr'"):
    hub.init_variable("w", ones, "sgd")
for betas in ((0.9,), (0.9, 1.0), 0.9):
    with raises(sumpter.ConfigError, "betas is", "two numbers from 0 to below 1"):
        hub.init_variable("w", ones, "adam", betas=betas)
with raises(sumpter.ConfigError, "lr is -1", "0 or more"):
    hub.init_variable("w", ones, "sgd", lr=-1)
for flags in ({"nesterov": True}, {"nesterov": True, "momentum": 0.9, "dampening": 0.5}):
    with raises(sumpter.ConfigError, "nesterov needs momentum, and no dampening"):
        hub.init_variable("w", ones, "sgd", lr=0.1, **flags)
with raises(sumpter.ConfigError, "nesterov is 0.5", "True or False"):
    hub.init_variable("w", ones, "sgd", lr=0.1, momentum=0.9, nesterov=0.5)
with raises(sumpter.ConfigError, "lr is True", "a number"):
    hub.init_variable("w", ones, "sgd", lr=True)
with raises(sumpter.ConfigError, "rule=None", "lr"):
    hub.init_variable("w", ones, lr=0.1)
with raises(sumpter.ConfigError, "exp_avg [3000]", "exp_avg [4]"):
    hub.init_variable("w", ones, "adam", state=hub.state("adam"))
with raises(sumpter.ConfigError, "momentum", "call init_variable() again"):
    hub.init_variable("plain", ones, "sgd", lr=0.1)
    hub.set_hyperparameters("plain", momentum=0.9)
with raises(service.VariableError, "no state"):
    hub.state("counts")

# NumPy's numbers are numbers.
lr = 0.5 if RANK == 0 else np.float32(0.5)
hub.init_variable("w", ones, "sgd", lr=lr, maximize=np.bool_(True))
assert hub.push_pull("w", ones).tolist() == [1.5] * 4
hub.set_hyperparameters("w", lr=np.float64(0.25) if RANK == 0 else 0.25)
assert hub.push_pull("w", ones).tolist() == [1.75] * 4
# A state that is none on one rank.
state = hub.state("w")
if RANK == 1:
    with raises(sumpter.ConfigError, "the state's value", "not numbers"):
        hub.init_variable("v", ones, "sgd", lr=0.1, state={**state, "value": ["a"] * 4})
else:
    with raises(sumpter.MismatchError, "rank 1: the state's value", "not numbers"):
        hub.init_variable("v", ones, "sgd", lr=0.1, state=state)
# Without elements, and without dimensions.
for shape in ((0, 4), ()):
    some = np.ones(shape, np.float32)
    hub.init_variable("w", some, "adam")
    assert hub.push_pull("w", some).shape == shape
    state = hub.state("w")
    assert state["exp_avg"].shape == shape
    hub.init_variable("v", some, "adam", state=state)
    assert np.array_equal(hub.push_pull("v", some), hub.push_pull("w", some))

# All the others have gone on.
for name in RULES:
    hub.push(name, gradients(15)[RANK])
    hub.push(f"{name} again", gradients(15)[RANK])
    assert np.array_equal(hub.pull(name), hub.pull(f"{name} again"))
hub.close()
with raises(sumpter.ClosedError, "connect() again"):
    hub.pull("adam")
