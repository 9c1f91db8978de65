"""Signals that end the command become an exception, so that everything is put away."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def orderly() -> Iterator[None]:
    """Within, the first ending signal raises SystemExit and later ones are ignored."""
    before = {number: signal.getsignal(number) for number in ENDING}

    def leave(number: int, _frame: object) -> None:
        # A second Ctrl-C must not interrupt the clean-up that the first one started.
        for other in ENDING:
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number, handler in before.items():
        # `nohup` has its reason.
        if handler is not signal.SIG_IGN:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
