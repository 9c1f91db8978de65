"""One thread that calls what has passed its deadline.

It sleeps until the earliest deadline that it knows. What ends in time only leaves the table, so a
training step costs it nothing.
"""

import os
import threading
import time
from collections.abc import Callable

_Late = Callable[[], object]


class Deadlines:
    """What to call, and when, by what it is for."""

    def __init__(self) -> None:
        self._late: dict[object, tuple[float, _Late]] = {}
        self._changed = threading.Condition()
        self._next = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, key: object, deadline: float, late: _Late) -> None:
        """Calls `late` at a time of the monotonic clock, unless `key` is discarded before.

        `late` must not block.
        """
        with self._changed:
            self._late[key] = (deadline, late)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sumpter-deadlines", daemon=True
                )
                self._thread.start()
            if deadline < self._next:
                self._changed.notify()

    def discard(self, key: object) -> None:
        """Forgets what was added for `key`."""
        with self._changed:
            self._late.pop(key, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [key for key, (deadline, _) in self._late.items() if deadline <= now]
                late = [self._late.pop(key)[1] for key in due]
                if not late:
                    self._next = min((at for at, _ in self._late.values()), default=float("inf"))
                    idle = self._next == float("inf")
                    self._changed.wait(None if idle else self._next - now)
            for call in late:
                call()


deadlines = Deadlines()


def _after_fork() -> None:
    # The parent's thread does not exist in the child, and may have held the lock.
    deadlines.__init__()


os.register_at_fork(after_in_child=_after_fork)
