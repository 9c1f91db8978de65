"""Threads for callbacks of operations, so that a callback may wait for other operations.

The core announces completions from a single thread, which must never block. What may block runs
here: in any thread with `run`, or one after the other with a `CallbackQueue`.
"""

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sumpter._core.deadlines import deadlines

# Threads that are kept when they have nothing to do: starting one takes as long as a small round.
KEPT_THREADS = 4

# How long a callback may block, with no operation of its own in flight, before those after it run
# beside it: it may wait for one of them. Far longer than a callback computes, because callbacks
# that overtake each other may begin operations in another order than on other ranks.
OVERTAKE_AFTER_S = 10.0

# How long a session that closes waits for callbacks to return.
RETURN_S = 5.0

Action = Callable[[], object]

_log = logging.getLogger("sumpter")


class _Threads:
    """As many threads as there are actions that block, and some that are kept for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._actions: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._all: set[threading.Thread] = set()
        self._idle = 0

    def run(self, action: Action) -> None:
        """Starts `action` in a thread that does nothing else meanwhile."""
        with self._changed:
            if self._idle:
                self._idle -= 1
            else:
                thread = threading.Thread(target=self._run, name="sumpter-callbacks", daemon=True)
                self._all.add(thread)
                thread.start()
        self._actions.put(action)

    def finish(self, timeout_s: float) -> None:
        """Blocks until all actions have ended but that of the calling thread."""
        with self._changed:
            own = threading.current_thread() in self._all
            self._changed.wait_for(lambda: len(self._all) - self._idle <= own, timeout_s)

    def _run(self) -> None:
        while True:
            _carry_out(self._actions.get())
            with self._changed:
                keeps = self._idle < KEPT_THREADS
                if keeps:
                    self._idle += 1
                else:
                    self._all.remove(threading.current_thread())
                self._changed.notify_all()
            if not keeps:
                return


class _Entry(NamedTuple):
    """Waits for operations, and then calls back."""

    settle: Action
    conclude: Action


class CallbackQueue:
    """Waits for operations and calls back, one after the other in the order of `add`.

    Callbacks that begin operations therefore do so in the same order on all ranks. What is added
    within a callback goes into another queue, so that the callback can wait for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[_Entry] = deque()
        # That of the thread which takes the next entry; None if there is nothing to do.
        self._turn: _Turn | None = None
        self._is_watched = False

    @property
    def stands(self) -> bool:
        """Whether all callbacks have returned, or wait for something that is not in this queue."""
        turn = self._turn
        return turn is None or turn.blocks()

    def add(self, settle: Action, conclude: Action) -> None:
        """Calls `settle`, which blocks until operations are over, and then `conclude`."""
        turn = _here.turn
        if turn is None:
            self._put(_Entry(settle, conclude))
        else:
            turn.inner.setdefault(self, CallbackQueue())._put(_Entry(settle, conclude))

    def _put(self, entry: _Entry) -> None:
        with self._lock:
            self._entries.append(entry)
            watches = self._turn is not None and not self._is_watched
            if watches:
                self._is_watched = True
            starts = self._turn is None
            if starts:
                self._begin_turn()
        if watches:
            self._watch()

    def _begin_turn(self) -> None:
        self._turn = turn = _Turn()
        _threads.run(lambda: self._take(turn))

    def _take(self, turn: "_Turn") -> None:
        """Carries out entries until there are none, or until another thread has the turn."""
        while True:
            with self._lock:
                if self._turn is not turn:
                    return
                if not self._entries:
                    self._turn = None
                    return
                entry = self._entries.popleft()
            _carry_out(entry.settle)
            turn.since = time.monotonic()
            _here.turn = turn
            running.add(turn)
            _carry_out(entry.conclude)
            running.discard(turn)
            _here.turn = None
            turn.since = None
            # What it holds, such as memory, must not wait here for the next one.
            del entry

    def _watch(self) -> None:
        deadlines.add(self, time.monotonic() + OVERTAKE_AFTER_S, self._look)

    def _look(self) -> None:
        """Lets another thread take the turn if a callback blocks for what comes after it."""
        with self._lock:
            turn = self._turn
            if turn is None or not self._entries:
                self._is_watched = False
                return
            if turn.blocks():
                self._begin_turn()
        self._watch()


class _Turn:
    """The time in which one thread carries out the entries of a queue."""

    def __init__(self) -> None:
        # When the callback began in which the thread is.
        self.since: float | None = None
        # In place of other queues, for what callbacks add.
        self.inner: dict[CallbackQueue, CallbackQueue] = {}

    def blocks(self) -> bool:
        """Whether the thread has been in a callback for long, and not for operations of its own."""
        since = self.since
        return (
            since is not None
            and time.monotonic() - since >= OVERTAKE_AFTER_S
            and all(inner.stands for inner in list(self.inner.values()))
        )


def run(action: Action) -> None:
    """Starts `action`, which may block, in a thread of its own."""
    _threads.run(action)


def is_in_callback() -> bool:
    """Whether the caller is in a callback of a `CallbackQueue`, which only is if one is running."""
    return _here.turn is not None


def finish() -> None:
    """Blocks until callbacks have returned, if they do so soon."""
    _threads.finish(RETURN_S)


def _carry_out(action: Action) -> None:
    try:
        action()
    except Exception:
        _log.exception("a callback of an operation failed")


class _Thread(threading.local):
    """What the calling thread does."""

    # That of a `CallbackQueue`, while the thread is in one of its callbacks.
    turn: _Turn | None = None


# The turns of queues that are in a callback, for callers that ask often: what belongs to a thread
# takes longer to find.
running: set[_Turn] = set()
_threads = _Threads()
_here = _Thread()


def _after_fork() -> None:
    global _threads
    # The parent's threads do not exist in the child.
    _threads = _Threads()
    _here.turn = None
    running.clear()


os.register_at_fork(after_in_child=_after_fork)
