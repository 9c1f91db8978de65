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
    "HostsUpdatedInterrupt",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProfileError",
    "StartError",
    "SumpterError",
    "TraceError",
    "UnsupportedError",
    "VariableError",
]


class NotInitializedError(SumpterError, ValueError):
    """A call that needs a job was made before init() or after shutdown()."""


class DuplicateNameError(SumpterError, ValueError):
    """A name was used again while an operation of that name was still in flight."""


class UnsupportedError(SumpterError, TypeError):
    """An array's device, layout or element type is not one that Sumpter carries."""


class VariableError(SumpterError, ValueError):
    """A variable has no value yet, or belongs to another namespace or connection."""


class ProfileError(SumpterError, ValueError):
    """A profile's file, or a field of a profile, is not what it has to be."""


class TraceError(SumpterError, ValueError):
    """A trace's file is not what it has to be, or has not what is asked for."""


class HostsUpdatedInterrupt(RuntimeError):
    """Workers can be taken in: raised in all ranks' state.commit(), for elastic.run() to catch.

    `skip_sync` is Horovod's, for changes that need no synchronized state; there are none here.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("workers have joined the job: only elastic.run() can take them in")
        self.skip_sync = skip_sync
