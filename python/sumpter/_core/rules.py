"""Update rules: torch.optim's hyper-parameters as the coefficients of one step.

Each function takes the hyper-parameters of an optimizer under torch's names, and the number of the
step, from 1. What depends on that number, such as Adam's bias corrections, is computed here, in
double precision, so that everyone who applies a rule needs no more than multiplications, divisions
and square roots. `scale` multiplies the gradient first: the inverse of a loss scale, or the factor
of a clipped norm.
"""

from typing import NamedTuple

from sumpter import _native

_NAMES = _native.update_coefficients()
_NEUTRAL = dict.fromkeys(_NAMES, 1.0) | dict.fromkeys(
    ("decay", "keep", "keep_square", "epsilon", "step"), 0.0
)


class Update(NamedTuple):
    """A rule, and what it is applied with in one round."""

    rule: str
    coefficients: tuple[float, ...]


def sgd(
    step: int,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    scale: float = 1.0,
) -> Update:
    """torch.optim.SGD; its momentum buffer is the first gradient at first, without dampening."""
    rule = ("sgd_nesterov" if nesterov else "sgd_momentum") if momentum else "sgd"
    return _update(
        rule,
        scale=-scale if maximize else scale,
        decay=weight_decay,
        keep=momentum,
        take=1.0 if step == 1 else 1.0 - dampening,
        step=-lr,
    )


def adam(
    step: int,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
    scale: float = 1.0,
) -> Update:
    """torch.optim.Adam, and with `decoupled_weight_decay` AdamW."""
    beta1, beta2 = betas
    decay, shrink = weight_decay, 1.0
    if decoupled_weight_decay:
        decay, shrink = 0.0, 1.0 - lr * weight_decay
    return _update(
        "adam_amsgrad" if amsgrad else "adam",
        scale=-scale if maximize else scale,
        decay=decay,
        shrink=shrink,
        take=1.0 - beta1,
        keep_square=beta2,
        take_square=1.0 - beta2,
        divisor=(1.0 - beta2**step) ** 0.5,
        epsilon=eps,
        step=-lr / (1.0 - beta1**step),
    )


def rmsprop(
    step: int,
    *,
    lr: float = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    maximize: bool = False,
    scale: float = 1.0,
) -> Update:
    """torch.optim.RMSprop."""
    del step
    rule = "rmsprop" + "_centered" * centered + "_momentum" * (momentum > 0)
    return _update(
        rule,
        scale=-scale if maximize else scale,
        decay=weight_decay,
        keep=momentum,
        keep_square=alpha,
        take_square=1.0 - alpha,
        epsilon=eps,
        step=-lr,
    )


def adagrad(
    step: int,
    *,
    lr: float = 1e-2,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    eps: float = 1e-10,
    maximize: bool = False,
    scale: float = 1.0,
) -> Update:
    """torch.optim.Adagrad; its initial accumulator is what the slot begins with."""
    return _update(
        "adagrad",
        scale=-scale if maximize else scale,
        decay=weight_decay,
        epsilon=eps,
        step=-lr / (1.0 + (step - 1) * lr_decay),
    )


def lion(
    step: int,
    *,
    lr: float = 1e-4,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    maximize: bool = False,
    scale: float = 1.0,
) -> Update:
    """Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2)."""
    del step
    beta1, beta2 = betas
    return _update(
        "lion",
        scale=-scale if maximize else scale,
        shrink=1.0 - lr * weight_decay,
        keep=beta1,
        take=1.0 - beta1,
        keep_square=beta2,
        take_square=1.0 - beta2,
        step=-lr,
    )


def _update(rule: str, **coefficients: float) -> Update:
    given = _NEUTRAL | coefficients
    return Update(rule, tuple(float(given[name]) for name in _NAMES))
