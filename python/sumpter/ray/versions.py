"""Whether the Ray that is installed has what the backend builds on."""

from __future__ import annotations

import re

import ray

from sumpter._packages import advice

# The oldest release that the tests have passed with.
OLDEST = (2, 60)


def check() -> None:
    """Raises ImportError for a Ray that is too old or has no Train, with what to install."""
    if too_old(ray.__version__):
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"sumpter.ray needs Ray {oldest} or newer, and {ray.__version__} is installed: "
            f"pip install 'ray[train]>={oldest}'",
            name="ray",
        )
    try:
        from ray import train
    except ImportError as error:
        raise ImportError(
            f"{advice('ray', 'sumpter.ray')} (Ray is there without its part Train: {error})",
            name="ray",
        ) from error
    # Of the two versions only the second has callbacks of the user's own.
    if not hasattr(train, "UserCallback"):
        raise ImportError(
            "sumpter.ray needs the second version of Ray Train, which RAY_TRAIN_V2_ENABLED=0 "
            "switches off: unset that variable",
            name="ray",
        )


def too_old(version: str) -> bool:
    """Whether a version of Ray lacks what is needed; one that cannot be read does not."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST
