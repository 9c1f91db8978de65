"""Calls that one rank cannot make, for the worker scripts of every front."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
# It cannot make the calls.
ODD = WORLD_SIZE - 1
# Below the time between two heartbeats of jobs.PATIENCE, and far above what a message takes.
AT_ONCE_S = 5.0


def refused(
    bad: Callable[[], object], good: Callable[[], object], reason: str, barrier: Callable[[], Any]
) -> float:
    """One rank makes the `bad` call, the others the `good` one: all get the `reason`.

    The others get it with that rank's number. Returns how long it took.
    """
    barrier()
    began = time.monotonic()
    try:
        (bad if RANK == ODD else good)()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError(f"rank {RANK}: there was no error about {reason!r}")
    took = time.monotonic() - began
    parts = [reason] if RANK == ODD else [reason, "MismatchError", f"rank {ODD} "]
    missing = [part for part in parts if part not in said]
    assert not missing, f"{missing} not in: {said}"
    return took


def refused_at_once(*arguments: Any) -> None:
    """As refused(), before a heartbeat can say it: the names of the call's rounds are known."""
    took = refused(*arguments)
    assert took < AT_ONCE_S, f"rank {RANK} had its error after {took:.1f} s"
