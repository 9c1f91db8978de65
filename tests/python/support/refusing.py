"""Calls that one rank cannot make, for the worker scripts of every front."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
# It cannot make the calls.
ODD = WORLD_SIZE - 1
# Below the time between two heartbeats of jobs.PATIENCE, and far above what a message takes.
AT_ONCE_S = 5.0

# What a rank does under a name, or without one.
Call = Callable[[str | None], object]


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


def each_refused(
    words: Iterable[str],
    cases: Mapping[str, tuple[Call, Call, str]],
    barrier: Callable[[], Any],
    later: Callable[[str | None], None],
) -> None:
    """These cases under their names, each twice: again under the name that has failed, and has
    another meaning in the core by then. After each, `later` makes calls that match."""
    for word in (word for word in words for _ in range(2)):
        bad, good, reason = cases[word]
        refused_at_once(lambda: bad(word), lambda: good(word), reason, barrier)  # noqa: B023
        later(word)


def each_refused_unnamed(
    words: Iterable[str],
    cases: Mapping[str, tuple[Call, Call, str]],
    barrier: Callable[[], Any],
    later: Callable[[str | None], None],
) -> None:
    """These cases without a name, which the coordinator finds by heartbeats."""
    for word in words:
        bad, good, reason = cases[word]
        refused(lambda: bad(None), lambda: good(None), reason, barrier)  # noqa: B023
        later(None)


def refused_at_once(*arguments: Any) -> None:
    """As refused(), before a heartbeat can say it: the names of the call's rounds are known."""
    took = refused(*arguments)
    assert took < AT_ONCE_S, f"rank {RANK} had its error after {took:.1f} s"
