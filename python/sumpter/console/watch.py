"""Looks at a coordinator again and again, and keeps what a page shows: a view, curves, events."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from sumpter import _failure
from sumpter.console.document import event_rows, short, view_document
from sumpter.console.events import FAULT, NOTE, Event, events
from sumpter.launch.top import Top, View

# Ten minutes of a look a second; a page draws as much.
POINTS = 600
EVENTS = 200
# Curves of jobs that are not there now, as when a coordinator has restarted.
OLD_CURVES = 16


class Point(NamedTuple):
    """One look at a job's speed."""

    number: int
    time_s: float
    goodput_gbps: float | None
    optimum_gbps: float | None


class Happening(NamedTuple):
    """An event, and when it was seen."""

    number: int
    time_s: float
    event: Event


class Watcher:
    """What a coordinator says, for any number of pages.

    `fetch` gives its status document. When it fails, its words are shown with the last view, and it
    is asked again.
    """

    def __init__(
        self,
        fetch: Callable[[], str],
        interval_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._top = Top(fetch)
        self.interval_s = interval_s
        self._clock = clock
        # A page that knows another one's numbers begins anew.
        self._session = secrets.token_hex(8)
        self._number = 0
        self._view: View | None = None
        self._seen_s = 0.0
        self._trouble = ""
        self._curves: dict[str, deque[Point]] = {}
        self._events: deque[Happening] = deque(maxlen=EVENTS)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def look(self) -> None:
        """Looks once. Raises what is wrong, after noting it for the pages."""
        try:
            view = self._top.look()
        except Exception as error:
            with self._lock:
                self._number += 1
                self._fail(error)
            raise
        with self._lock:
            self._number += 1
            if self._trouble:
                self._note(Event(NOTE, "", "the coordinator answers again"))
            self._trouble = ""
            for event in events(self._view, view):
                self._note(event)
            self._view, self._seen_s = view, self._clock()
            self._extend(view)

    def watch(self) -> None:
        """Looks until `end()`, a look every interval."""
        while not self._ended.wait(self.interval_s):
            # It is noted for the pages; the coordinator, or another job, may come.
            with suppress(Exception):
                self.look()

    def end(self) -> None:
        """Ends watch()."""
        self._ended.set()

    def document(self, session: str = "", after: int = 0) -> dict[str, Any]:
        """What a page shows, with points and events that came after those it has."""
        with self._lock:
            if session != self._session:
                after = 0
            view = self._view
            return {
                "session": self._session,
                "number": self._number,
                "now_s": self._clock(),
                "interval_s": self.interval_s,
                "seen_s": self._seen_s,
                "trouble": short(self._trouble),
                **view_document(view or View((), ())),
                "points": {
                    name: [list(point[1:]) for point in curve if point.number > after]
                    for name, curve in self._curves.items()
                },
                "events": event_rows(
                    (happening.time_s, happening.event)
                    for happening in self._events
                    if happening.number > after
                ),
            }

    def _fail(self, error: Exception) -> None:
        words = _failure.message_of(error)
        if isinstance(error, _failure.Failure):
            # There is no coordinator to ask.
            event, trouble = Event(NOTE, "", words), words
        else:
            event = Event(FAULT, "", f"lost the coordinator: {words}")
            trouble = f"No figures from the coordinator: {words}"
        if not self._trouble and self._view is not None:
            self._note(event)
        self._trouble = trouble

    def _note(self, event: Event) -> None:
        self._events.append(Happening(self._number, self._clock(), event))

    def _extend(self, view: View) -> None:
        for job in view.jobs:
            goodput, share = job.goodput_gbps, job.optimum_share
            optimum = goodput / share if goodput is not None and share else math.inf
            # JSON has no infinity.
            known = optimum if math.isfinite(optimum) else None
            curve = self._curves.setdefault(job.name, deque(maxlen=POINTS))
            curve.append(Point(self._number, self._clock(), goodput, known))
        here = {job.name for job in view.jobs}
        gone = [name for name in self._curves if name not in here]
        for name in gone[: max(0, len(gone) - OLD_CURVES)]:
            del self._curves[name]
