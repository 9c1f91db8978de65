"""Sumpter's exception tree: what the Rust core raises, and what only the Python fronts can see."""

from sumpter._native import (
    AuthError,
    ClosedError,
    ConfigError,
    DeadlineError,
    MismatchError,
    PeerLostError,
    StartError,
    SumpterError,
)

__all__ = [
    "AuthError",
    "ClosedError",
    "ConfigError",
    "DeadlineError",
    "DuplicateNameError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "StartError",
    "SumpterError",
    "UnsupportedError",
]


class NotInitializedError(SumpterError, ValueError):
    """A call that needs a job was made before init() or after shutdown()."""


class DuplicateNameError(SumpterError, ValueError):
    """A name was used again while an operation of that name was still in flight."""


class UnsupportedError(SumpterError, TypeError):
    """An array's device, layout or element type is not one that Sumpter carries."""
