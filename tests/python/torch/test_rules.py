"""Update rules on the lanes, beside torch.optim with foreach=False."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import sumpter
from sumpter import _native
from sumpter._core import membership, rules
from sumpter._core.session import Session
from sumpter._core.tensor import Tensor
from sumpter.torch import Lion

STEPS = 1000
ELEMENTS = 1003


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    sumpter.init(rank=0, world_size=1)
    yield membership.current()
    sumpter.shutdown()


def view(array: np.ndarray) -> memoryview:
    return memoryview(array).cast("B")


class Variable:
    """A variable on the lane of a job of one rank."""

    def __init__(self, session: Session, name: str, value: np.ndarray, update: rules.Update):
        self.weights = value.copy()
        dtype = str(value.dtype)
        self.tensor: Tensor = session.declare(name, "update", value.shape, dtype, rule=update.rule)
        self.tensor.set_state([view(value)]).wait()

    def step(self, gradient: np.ndarray, update: rules.Update) -> None:
        send, receive = gradient.ctypes.data, self.weights.ctypes.data
        keep = (gradient, self.weights)
        self.tensor.submit(send, receive, keep=keep, update=update.coefficients).wait()

    def parts(self) -> list[np.ndarray]:
        """The value and the slots."""
        [(_, _, parts)] = self.tensor.mirrored()
        return [np.frombuffer(part, self.weights.dtype) for part in parts]


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, rules.sgd, {"lr": 0.1}),
    "sgd-momentum": (
        torch.optim.SGD,
        rules.sgd,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 1e-3},
    ),
    "sgd-nesterov": (
        torch.optim.SGD,
        rules.sgd,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True},
    ),
    "adam": (torch.optim.Adam, rules.adam, {"lr": 0.01, "weight_decay": 1e-3}),
    "adam-amsgrad": (torch.optim.Adam, rules.adam, {"lr": 0.01, "amsgrad": True}),
    "adam-maximize": (torch.optim.Adam, rules.adam, {"lr": 0.01, "eps": 1e-6, "maximize": True}),
    "adamw": (
        torch.optim.AdamW,
        lambda step, **given: rules.adam(step, decoupled_weight_decay=True, **given),
        {"lr": 0.01, "weight_decay": 0.1},
    ),
    "rmsprop": (torch.optim.RMSprop, rules.rmsprop, {"lr": 0.01}),
    "rmsprop-centered": (
        torch.optim.RMSprop,
        rules.rmsprop,
        {"lr": 0.01, "centered": True, "momentum": 0.9, "weight_decay": 1e-3},
    ),
    "rmsprop-maximize": (torch.optim.RMSprop, rules.rmsprop, {"lr": 0.01, "maximize": True}),
    "adagrad": (torch.optim.Adagrad, rules.adagrad, {"lr": 0.1, "lr_decay": 1e-3}),
    "adagrad-maximize": (
        torch.optim.Adagrad,
        rules.adagrad,
        {"lr": 0.1, "weight_decay": 1e-3, "eps": 1e-8, "maximize": True},
    ),
    "lion": (Lion, rules.lion, {"lr": 1e-3, "weight_decay": 0.1}),
    "lion-maximize": (Lion, rules.lion, {"lr": 1e-3, "betas": (0.95, 0.98), "maximize": True}),
}


def beside_torch(
    session: Session, name: str, label: str, dtype: torch.dtype
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The weights and slots after all steps: on the lane, and torch's."""
    kind, rule, given = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(11)
    parameter = torch.randn(ELEMENTS, generator=generator, dtype=dtype)
    # Lion has one implementation.
    plain = {} if kind is Lion else {"foreach": False}
    optimizer = kind([parameter], **plain, **given)
    variable = Variable(session, label, parameter.numpy().copy(), rule(1, **given))
    for step in range(1, STEPS + 1):
        parameter.grad = torch.randn(ELEMENTS, generator=generator, dtype=dtype)
        optimizer.step()
        variable.step(parameter.grad.numpy(), rule(step, **given))
    value, *slots = variable.parts()
    assert np.array_equal(value, variable.weights), "what is mirrored is what came back"
    both = {"value": (value, parameter.numpy())}
    names = _native.update_rules()[variable.tensor.description.rule or ""]
    for slot, part in zip(names, slots, strict=True):
        both[slot] = (part, optimizer.state[parameter][slot].numpy())
    return both


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rule_gives_the_bits_that_torch_gives(
    session: Session, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in ("AVX2", "AVX512"):
        pytest.skip(f"torch does not fuse multiplications and additions on {capability}")

    # The library that torch takes roots from does not round them correctly.
    def root(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sqrt(x.numpy()))

    monkeypatch.setattr(torch.Tensor, "sqrt", root)
    monkeypatch.setattr(torch.Tensor, "sqrt_", lambda x: x.copy_(root(x)))
    for part, (ours, theirs) in beside_torch(session, name, f"{name}.{dtype}", dtype).items():
        assert np.array_equal(ours, theirs), part


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rule_is_as_near_to_torch_as_its_roots_are(session: Session, name: str) -> None:
    for part, (ours, theirs) in beside_torch(session, name, f"{name}.root", torch.float32).items():
        limit = 1e-5 * np.abs(theirs).max()
        assert np.abs(ours - theirs).max() <= limit, part


def test_lion_is_the_algorithm_of_the_paper() -> None:
    lr, (beta1, beta2), decay = 0.01, (0.9, 0.99), 0.3
    generator = torch.Generator().manual_seed(7)
    parameter = torch.randn(50, generator=generator, dtype=torch.float64)
    theta, m = parameter.clone(), torch.zeros(50, dtype=torch.float64)
    optimizer = Lion([parameter], lr=lr, betas=(beta1, beta2), weight_decay=decay)
    for _ in range(20):
        parameter.grad = torch.randn(50, generator=generator, dtype=torch.float64)
        optimizer.step()
        c = beta1 * m + (1 - beta1) * parameter.grad
        theta = theta - lr * (torch.sign(c) + decay * theta)
        m = beta2 * m + (1 - beta2) * parameter.grad
        torch.testing.assert_close(parameter, theta, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(optimizer.state[parameter]["exp_avg"], m)
    assert optimizer.step(lambda: 3.0) == 3.0
    for wrong in ({"lr": -1.0}, {"betas": (0.9, 1.0)}, {"betas": (0.9,)}, {"weight_decay": -0.1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
            Lion([parameter], **wrong)
    parameter.grad = torch.ones(50, dtype=torch.float64).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


def test_sixteen_bit_weights_are_those_of_a_float32_value(session: Session) -> None:
    given = {"lr": 0.01, "weight_decay": 0.1}
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(ELEMENTS, generator=generator).bfloat16()
    update = rules.adam(1, **given)
    tensor = session.declare("half", "update", (ELEMENTS,), "bfloat16", rule=update.rule)
    value = weights.float().numpy()
    tensor.set_state([view(value)]).wait()
    wide = Variable(session, "wide", value, update)
    for step in range(1, 20):
        gradient = torch.randn(ELEMENTS, generator=generator).bfloat16()
        update = rules.adam(step, **given)
        wide.step(gradient.float().numpy(), update)
        send, receive = gradient.data_ptr(), weights.data_ptr()
        keep = (gradient, weights)
        tensor.submit(send, receive, keep=keep, update=update.coefficients).wait()
        assert torch.equal(weights, torch.from_numpy(wide.weights).bfloat16())


def test_wrong_uses_are_refused(session: Session) -> None:
    value, update = np.ones(4, np.float32), rules.sgd(1, lr=0.1)
    variable = Variable(session, "refuses", value, update)
    address = value.ctypes.data
    submit = variable.tensor.submit
    with pytest.raises(sumpter.ConfigError, match="needs coefficients"):
        submit(address, variable.weights.ctypes.data, keep=value)
    with pytest.raises(sumpter.ConfigError, match="same memory"):
        submit(address, address, keep=value, update=update.coefficients)
    with pytest.raises(sumpter.ConfigError, match="finite"):
        submit(address, variable.weights.ctypes.data, keep=value, update=(float("nan"),) * 10)
    with pytest.raises(sumpter.MismatchError, match="3 parts|not 2 parts|0 slots"):
        variable.tensor.set_state([view(value), view(value)]).wait()
    with pytest.raises(sumpter.ConfigError, match="unknown update rule"):
        session.declare("no rule", "update", (4,), "float32", rule="newton")
    plain = session.declare("plain", "all_reduce", (4,), "float32")
    with pytest.raises(sumpter.ConfigError, match="no update rule"):
        plain._submit(address, address, 0, "", value, update.coefficients)
