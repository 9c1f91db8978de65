"""What threads log, waited for: a thread that a test has started may log at any later moment."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

# Only so that a hang fails instead of blocking.
HANG_S = 120.0


class Logged(logging.Handler):
    """The records of one logger, by whatever thread."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self._texts.append(self.format(record))
            self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        """Blocks until a record, or the traceback in it, has contained `text`."""
        with self._changed:
            found = self._changed.wait_for(lambda: any(text in t for t in self._texts), HANG_S)
        assert found, f"nothing with {text!r} was logged, but {self._texts}"


@contextlib.contextmanager
def logged(name: str = "sumpter") -> Iterator[Logged]:
    """Collects what is logged within, from `logger` and those below it."""
    handler, logger = Logged(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
