"""Packages that only some parts need: what is said when one is not installed."""

from __future__ import annotations

import importlib.util

# What pip installs to have each.
EXTRAS = {
    "torch": "sumpter[torch]",
    "ray": "sumpter[ray]",
    "jax": "sumpter[jax]",
    "optax": "sumpter[jax]",
    "tensorflow": "sumpter[tensorflow]",
    "keras": "sumpter[tensorflow]",
    "mxnet": "sumpter[mxnet]",
    "bayes_opt": "sumpter[tuning]",
    "jinja2": "sumpter-lab[report]",
    "plotly": "sumpter-lab[report]",
    "matplotlib": "sumpter-lab[plot]",
}


def need(package: str, user: str) -> None:
    """Raises ImportError, with what to install, unless a package of the table is installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(advice(package, user), name=package)


def advice(package: str, user: str) -> str:
    """What to do for want of a package of the table that `user` needs."""
    return f"{user} needs {package}, which is not installed: pip install '{EXTRAS[package]}'"


def missing(error: BaseException) -> str | None:
    """The package of the table for want of which an import failed, if that is the cause."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    return name if name in EXTRAS and importlib.util.find_spec(name) is None else None
