"""The tuners by name."""

from __future__ import annotations

from collections.abc import Callable

from sumpter._errors import ConfigError
from sumpter.tuning.points import Tuner
from sumpter.tuning.search import Bayes, Fixed, Grid


def _autobyte() -> Tuner:
    from sumpter.tuning.autobyte import AutoByte

    return AutoByte()


TUNERS: dict[str, Callable[[], Tuner]] = {
    "fixed": Fixed,
    "grid": Grid,
    "bayes": Bayes,
    "autobyte": _autobyte,
}


def make(name: str) -> Tuner:
    """A tuner that knows nothing yet. Raises ConfigError if there is none of that name."""
    if name not in TUNERS:
        raise ConfigError(f"there is no tuner {name!r}: give {', '.join(TUNERS)}")
    return TUNERS[name]()
