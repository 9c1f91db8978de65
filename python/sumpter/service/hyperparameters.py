"""The update rules by name, with the hyper-parameters and defaults of torch.optim."""

import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sumpter._core import rules
from sumpter._errors import ConfigError


def _adamw(step: int, **given: float) -> rules.Update:
    # torch.optim.AdamW's default.
    return rules.adam(step, **{"weight_decay": 1e-2, **given}, decoupled_weight_decay=True)


RULES: dict[str, Callable[..., rules.Update]] = {
    "sgd": rules.sgd,
    "adam": rules.adam,
    "adamw": _adamw,
    "rmsprop": rules.rmsprop,
    "adagrad": rules.adagrad,
    "lion": rules.lion,
}
# Averages that keep this share of themselves, or pairs of such shares.
_SHARES = ("betas", "alpha")
_FLAGS = ("nesterov", "maximize", "amsgrad", "centered")


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters with NumPy's numbers as those of Python, which ranks compare as text."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in given.items()
    }


def update_of(rule: str, step: int, given: Mapping[str, object]) -> rules.Update:
    """The update of one step, counted from 1.

    Raises ConfigError for a rule that the servers do not have, a hyper-parameter that is not one of
    its own, or one out of its range.
    """
    make = RULES.get(rule)
    if make is None:
        raise ConfigError(f"there is no update rule {rule!r}: the rules are {', '.join(RULES)}")
    known = _names(rule)
    for name, value in given.items():
        if name not in known:
            raise ConfigError(
                f"rule {rule!r} has no hyper-parameter {name!r}; it has {', '.join(known)}"
            )
        _check(rule, name, value)
    if given.get("nesterov") and (not given.get("momentum") or given.get("dampening")):
        raise ConfigError(f"rule {rule!r}: nesterov needs momentum, and no dampening")
    try:
        return make(step, **given)
    except TypeError as error:
        raise ConfigError(f"rule {rule!r}: {error}") from None


def _names(rule: str) -> list[str]:
    whole = inspect.signature(rules.adam if rule == "adamw" else RULES[rule]).parameters
    hidden = {"step", "scale", "decoupled_weight_decay"}
    return [name for name in whole if name not in hidden]


def _check(rule: str, name: str, value: object) -> None:
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise ConfigError(f"rule {rule!r}: {name} is {value!r}; it must be True or False")
        return
    pair = isinstance(value, tuple | list)
    values = list(value) if isinstance(value, tuple | list) else [value]
    fits = all(isinstance(each, numbers.Real) and not isinstance(each, bool)
               and math.isfinite(each) and each >= 0 for each in values)  # fmt: skip
    if name in _SHARES:
        fits = fits and all(each < 1 for each in values)
    if not fits or pair != (name == "betas") or (pair and len(values) != 2):
        raise ConfigError(
            f"rule {rule!r}: {name} is {value!r}; it must be "
            + ("two numbers" if name == "betas" else "a number")
            + (" from 0 to below 1" if name in _SHARES else ", 0 or more")
        )
