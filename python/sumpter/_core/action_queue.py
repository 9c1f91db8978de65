"""A thread that carries out actions which may block, such as waiting for a device, in order."""

import queue
import threading
from collections.abc import Callable

from sumpter._errors import ClosedError

Action = Callable[[], object]
Failed = Callable[[BaseException], object]


class ActionQueue:
    """A thread that carries out actions in the order in which they came."""

    def __init__(self, name: str) -> None:
        self._actions: queue.SimpleQueue[tuple[Action, Failed] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._carried_out = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, action: Action, failed: Failed) -> None:
        """Adds an action; `failed` is called with what it raises. ClosedError after close()."""
        with self._lock:
            if self._closed:
                raise ClosedError("Sumpter was shut down before the operation was done")
            self._actions.put((action, failed))

    def close(self, patience_s: float | None = None) -> None:
        """Carries out what is left and ends the thread.

        It is not waited for any more when it has carried out nothing for `patience_s`.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._actions.put(None)
        if threading.current_thread() is not self._thread:
            before = None
            while self._thread.is_alive() and self._carried_out != before:
                before = self._carried_out
                self._thread.join(patience_s)

    def _run(self) -> None:
        while (item := self._actions.get()) is not None:
            action, failed = item
            try:
                action()
            except BaseException as error:
                # Raised by the handle of the operation.
                failed(error)
            self._carried_out += 1
            # What an action holds, such as memory, must not wait here for the next one.
            del item, action, failed
